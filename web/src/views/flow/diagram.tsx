// The drawing: tokens from left to right, layers from bottom to top, and ribbons of what each part adds to the logit.
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { capital, visible } from "../../parts";
import { useWidth } from "../../measuring";
import type { Part, Run, Source } from "../../source";
import { most, shown, type Share } from "../attention/stack";
import { added, isLabelled, layoutOf, nameOf, ribbon, spaced, tenths, type Band, type Layout, type Piece } from "./layout";

/** Heads whose sources are shown, and keys of each. */
const [READING, KEYS] = [5, 4];
const FAINT = 0.04;
/** Of the drawing: above the layers, and below them with words across or upright. */
const [TOP, ACROSS, UPRIGHT] = [42, 26, 84];

interface DiagramProps {
  source: Source;
  run: Run;
  part: Part;
  /** The position whose next token is predicted. */
  place: number;
  /** Empty while they are awaited. */
  pieces: Piece[];
  name: string;
  total: number;
  chosen: number | null;
  open: (piece: Piece) => void;
}

export function Diagram({ source, run, part, place, pieces, name, total, chosen, open }: DiagramProps) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const hatch = useId();
  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = width < 620;
  const half = narrow ? 36 : Math.min(110, width / 9);
  const [side, way, radius] = narrow ? [76, 10, 5] : [88, 34, 12];
  const layout: Layout = useMemo(() => layoutOf(pieces, half, touch), [pieces, half]);
  const heads = pieces.filter(({ kind }) => kind === "head").sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const reads = useReads(source, run, part, place, heads.slice(0, READING));
  const middle = width - side - way - half - 1;
  const [headsEnd, networks] = [middle - half - way, middle + half + way];
  const end = headsEnd - side - 14;
  const step = place > 0 ? (end - 8) / place : 0;
  const x = (token: number) => 8 + step * (token + 0.5);
  const across = step >= 54;
  const labels = across ? ACROSS : UPRIGHT;
  const bottom = TOP + layout.height;
  const bands = layout.bands.map((each) => ({ ...each, y: each.y + TOP }));
  const lines = bands.flatMap(({ piece, y }) => (reads.get(placeOf(piece)) ?? []).map(({ key, weight }) => ({ key, weight, y })));
  const words = run.tokens.slice(0, place);
  const weights = new Map<number, number>();
  for (const { key, weight } of lines) if (key < place) weights.set(key, Math.max(weight, weights.get(key) ?? 0));
  const read = [...weights].sort((a, b) => b[1] - a[1]).map(([at]) => ({ at, x: x(at) }));
  // Of a long text those alone that are read.
  const others = step < 8 ? [] : words.map((_, at) => ({ at, x: x(at) }));
  const named = spaced([...read, ...others], across ? 1 : 11);
  return (
    <div class="diagram" ref={frame} style={{ height: `${bottom + labels}px` }}>
      {end > 8 && (
        <>
          <svg {...{ width, height: bottom + labels }} aria-hidden="true">
            <pattern id={hatch} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
              <rect width="5" height="5" class="minus" />
              <path d="M0 0V5" class="stripe" />
            </pattern>
            {step >= 3 ? <path class="streams" d={words.map((_, at) => `M${x(at)} ${TOP}V${bottom}`).join("")} /> : place > 0 && <rect class="streams" x={8} y={TOP} width={end - 8} height={layout.height} />}
            <path class="stream" d={`M${middle} 20V${bottom + 6}`} />
            {lines.filter(({ key }) => key < place).map(({ key, weight, y }) => (
              <path class="line" style={{ opacity: Math.max(0.15, weight) }} d={`M${x(key)} ${bottom}V${y + 6}Q${x(key)} ${y} ${Math.min(x(key) + 10, end)} ${y}H${headsEnd - side}`} />
            ))}
            {bands.map((band) => (
              <path class="ribbon" fill={band.piece.value < 0 ? `url(#${hatch})` : undefined} data-sign={band.piece.value < 0 ? "minus" : "plus"} data-strong={band.piece.strong} d={ribbon(band, band.left ? headsEnd : networks, middle, 20, radius)} />
            ))}
            <text class="answer" x={middle} y={14} text-anchor="middle">
              {shown(name, 12)} {pieces.length > 0 && tenths(total)}
            </text>
            {named.map((at) => (
              <text class="token" data-read={weights.has(at)} {...(across ? { x: x(at), y: bottom + 16, "text-anchor": "middle" } : { transform: `translate(${x(at) + 4} ${bottom + 6}) rotate(-90)`, "text-anchor": "end" })}>
                {shown(words[at]!, across ? 7 : 12)}
              </text>
            ))}
            <text class="token" data-read="true" x={middle} y={bottom + 20} text-anchor="middle">
              {shown(run.tokens[place] ?? "", 12)}
            </text>
          </svg>
          <Parts label="Attention heads" bands={bands.filter(({ piece }) => piece.kind === "head")} from={headsEnd - side} {...{ side, chosen, open, reads }} words={run.tokens} />
          <Parts label="MLPs and the other parts" bands={bands.filter(({ left, piece }) => !left && isLabelled(piece, touch))} from={networks} {...{ side, chosen, open, reads }} words={run.tokens} />
        </>
      )}
    </div>
  );
}

interface PartsProps {
  label: string;
  bands: Band[];
  from: number;
  side: number;
  chosen: number | null;
  open: (piece: Piece) => void;
  reads: Map<string, Share[]>;
  words: string[];
}

/** One column of parts. One of them is a tab stop; arrow keys move from one to the next. */
function Parts({ label, bands, from, side, chosen, open, reads, words }: PartsProps) {
  const upward = [...bands].sort((a, b) => a.y - b.y);
  const opens = upward.filter(({ piece }) => piece.kind === "head" || piece.kind === "network");
  const strongest = opens.reduce<Band | null>((best, each) => (best && Math.abs(best.piece.value) >= Math.abs(each.piece.value) ? best : each), null);
  const [own, setOwn] = useState("");
  const stop = opens.some(({ piece }) => placeOf(piece) === own) ? own : strongest && placeOf(strongest.piece);
  const press = (event: KeyboardEvent) => {
    const all = [...(event.currentTarget as HTMLElement).querySelectorAll("button")];
    const at = all.indexOf(event.target as HTMLButtonElement);
    const next = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
  };
  return (
    <div role="group" aria-label={label} onKeyDown={press}>
      {upward.map(({ piece, y }) => {
        const { kind, layer, head, value, strong } = piece;
        const place = { left: `${from}px`, top: `${y}px`, width: `${side}px` };
        const number = <span class="number" data-sign={value < 0 ? "minus" : "plus"}>{added(value)}</span>;
        if (kind !== "head" && kind !== "network") {
          return <p class="part" style={place}>{kind === "rest" ? "biases" : "embed"} {strong && number}</p>;
        }
        const sources = (reads.get(placeOf(piece)) ?? []).map(({ key, weight }) => `${visible(words[key] ?? "")} ${(100 * weight).toFixed(0)} %`);
        const told = `${capital(nameOf(piece).replace("the ", ""))}: ${added(value)}${sources.length > 0 ? `, reads ${sources.join(", ")}` : ""}`;
        return (
          <button
            type="button"
            class="part"
            style={place}
            title={`${told}. ${kind === "head" ? "Opens its attention." : "Shows what it adds."}`}
            aria-label={told}
            aria-pressed={kind === "network" ? chosen === layer : undefined}
            tabIndex={placeOf(piece) === stop ? 0 : -1}
            onFocus={() => setOwn(placeOf(piece))}
            onClick={() => open(piece)}
          >
            <span>{kind === "head" ? `${layer}.${head}` : `${piece.count > 1 ? "exp" : "MLP"} ${layer}`}</span> {strong && number}
          </button>
        );
      })}
    </div>
  );
}

const placeOf = ({ kind, layer, head }: Piece): string => `${kind} ${layer} ${head}`;

/** The keys that some heads read most at a position, as they arrive. */
function useReads(source: Source, run: Run, part: Part, query: number, heads: Piece[]): Map<string, Share[]> {
  const [known, setKnown] = useState<{ key: string; reads: Map<string, Share[]> }>({ key: "", reads: new Map() });
  const key = JSON.stringify([run.run, part, query, heads.map(placeOf)]);
  useEffect(() => {
    const wanted = new AbortController();
    const asked = heads.map(async (piece): Promise<[string, Share[]]> => {
      const { layer, head } = piece;
      const row = await source.ask("rows", { run: run.run, part, query, layer, head, passed: false }, wanted.signal);
      return [placeOf(piece), most(row, KEYS).filter(({ weight }) => weight >= FAINT)];
    });
    // A saved file may not hold all of them.
    void Promise.allSettled(asked).then((found) => {
      if (wanted.signal.aborted) return;
      setKnown({ key, reads: new Map(found.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []))) });
    });
    return () => wanted.abort();
  }, [source, key]);
  return known.key === key ? known.reads : new Map();
}
