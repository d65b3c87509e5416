// The whole text in small: first choices of all layers, the part that is seen, and the token that is followed.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Experts } from "../../source";
import { COLOURS } from "./names";

interface OverviewProps {
  experts: Experts;
  count: number;
  token: number;
  /** The part that is seen, in tokens. */
  from: number;
  to: number;
  go: (middle: number) => void;
}

const LINE = 7;

/** A pointer's way to the strip's scroll bar: keyboards move the strip itself. */
export function Overview({ experts, count, token, from, to, go }: OverviewProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const shade = useShade();
  const height = experts.layers.length * LINE;
  useEffect(() => {
    const place = canvas.current;
    if (!place) return;
    const observer = new ResizeObserver(() => setWidth(place.clientWidth));
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const place = canvas.current;
    if (place && width > 0) draw(place, experts, count, width, height);
  }, [experts, count, width, height, shade]);
  const move = (event: PointerEvent) => {
    const place = event.currentTarget as HTMLElement;
    const box = place.getBoundingClientRect();
    go(((event.clientX - box.left) / box.width) * count);
  };
  return (
    <div
      class="overview"
      aria-hidden="true"
      style={{ height: `${height}px` }}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        move(event);
      }}
      onPointerMove={(event) => {
        if (event.currentTarget.hasPointerCapture(event.pointerId)) move(event);
      }}
    >
      <canvas ref={canvas} style={{ height: `${height}px` }} />
      <span class="seen" style={{ left: `${(100 * from) / count}%`, width: `${(100 * (to - from)) / count}%` }} />
      <span class="here" style={{ left: `${(100 * (token + 0.5)) / count}%` }} />
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, experts: Experts, count: number, width: number, height: number): void {
  const ratio = devicePixelRatio;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const colours = readColours(canvas);
  const line = canvas.height / experts.layers.length;
  for (let x = 0; x < canvas.width; x++) {
    const token = Math.min(count - 1, Math.floor(((x + 0.5) * count) / canvas.width));
    experts.layers.forEach((layer, at) => {
      pen.fillStyle = colours[(layer.choices[token]?.[0] ?? 0) % COLOURS] ?? "gray";
      pen.fillRect(x, Math.round(at * line), 1, Math.round(line) - ratio);
    });
  }
}

/** Custom properties as a canvas can take them: light-dark() is resolved on a probe that has them as its colour. */
function readColours(canvas: HTMLCanvasElement): string[] {
  const probe = document.createElement("span");
  canvas.parentElement?.append(probe);
  const colours = Array.from({ length: COLOURS }, (_, at) => {
    probe.style.color = `var(--expert-${at})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return colours;
}

/** Changes when the page's colours do. */
function useShade(): number {
  const [times, setTimes] = useState(0);
  useEffect(() => {
    const again = () => setTimes((last) => last + 1);
    const query = matchMedia("(prefers-color-scheme: dark)");
    query.addEventListener("change", again);
    const observer = new MutationObserver(again);
    for (const page of document.querySelectorAll(".glassformer")) {
      observer.observe(page, { attributes: true, attributeFilter: ["data-shade"] });
    }
    return () => {
      query.removeEventListener("change", again);
      observer.disconnect();
    };
  }, []);
  return times;
}
