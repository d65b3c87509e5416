// The tokens with the outputs of a program, and whether they are right.
import type { PartProps } from "./part";
import { Mark, Positions } from "../../parts";
import type { Program } from "../../source";

type OutputsProps = Pick<PartProps, "tokens" | "followed" | "choose"> & { program: Pick<Program, "outputs" | "definition" | "right"> };

export function Outputs({ program, tokens, followed, choose }: OutputsProps) {
  return (
    <Positions>
      {tokens.map((token, position) => {
        const right = program.right?.[position];
        const defined = `defined as ${program.definition?.[position]}`;
        const verdict = right === undefined ? "" : right ? ", as defined" : `, ${defined}`;
        return (
          <button
            type="button"
            aria-pressed={position === followed}
            aria-label={`${token} at ${position}: ${program.outputs[position]}${verdict}`}
            title={right === false ? defined : undefined}
            onClick={() => choose(position)}
          >
            <span class="word">
              {token}
              <sub>{position}</sub>
            </span>
            <span aria-hidden="true">{"\u2192"}</span>
            <b class="word">{program.outputs[position]}</b>
            {right !== undefined && <Mark right={right} />}
          </button>
        );
      })}
    </Positions>
  );
}
