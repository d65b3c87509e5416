// The text, coloured by a query's attention weights.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { TILE } from "../../source";
import { letterOn, share, stepOf, table, usePaint } from "./colours";
import { selectionOf, type ShapeProps } from "./selection";
import { useRow } from "./reading";
import { alike, seen } from "./stack";
import { TokenText, type Ground } from "./text";

/** Up to this many keys, whole matrices are fetched, so that hovering needs no request. */
const ALL_AT_ONCE = 1024;

export function WordsShape({ tiles, words, largest, root, selection, pin, setPin }: ShapeProps) {
  void tiles.version.value;
  const frame = useRef<HTMLDivElement>(null);
  const paint = usePaint(frame);
  const { stack } = tiles;
  const now = selectionOf(selection.value, pin);
  const query = now?.side === "query" ? now.place : null;
  const row = useRow(tiles, query);
  useEffect(() => {
    if (Math.max(stack.keys, stack.queries) > ALL_AT_ONCE) return;
    const owner = {};
    const count = (size: number) => Array.from({ length: Math.ceil(size / TILE) }, (_, at) => at);
    tiles.want(
      owner,
      count(stack.queries).flatMap((at) => count(stack.keys).map((column) => ({ level: 0, row: at, column }))),
    );
    return () => tiles.want(owner, []);
  }, [tiles]);
  const grounds = useMemo<Ground[]>(() => {
    if (!paint) return [];
    return table("weights", paint.dark).styles.map((background) => ({ background, color: letterOn(background) }));
  }, [paint]);
  const ground = useMemo(() => {
    if (!row) return null;
    return (place: number): Ground | null => {
      const step = stepOf("weights", share(row[place] ?? 0, largest, root));
      return step < 4 ? null : (grounds[step] ?? null);
    };
  }, [row, grounds, largest, root]);
  const reach = query === null ? null : seen(stack, tiles.layer, query);
  const look = (place: number | null) => (selection.value = place === null ? null : { side: "query", place });
  const choose = (place: number) => setPin(place === pin ? null : place);
  const one = alike(stack);
  return (
    <div class="words" ref={frame}>
      {!one && <h3>Queries</h3>}
      <TokenText
        words={words.queries}
        label={one ? "Text: choose a token to see what it reads" : "Queries: choose one to see what it reads"}
        active={query}
        pin={pin}
        ground={one ? ground : null}
        seen={one ? reach : null}
        look={look}
        choose={choose}
      />
      {!one && (
        <>
          <h3>Keys</h3>
          <TokenText
            words={words.keys}
            label="Keys: coloured by how much they are read"
            active={null}
            pin={null}
            ground={ground}
            seen={reach}
            look={() => {}}
            choose={() => {}}
          />
        </>
      )}
    </div>
  );
}
