// The top of the page: its name, the choice of the model, and actions on the whole page.
import { useLayoutEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import type { ModelCard, Source } from "./source";
import { startOf, startOfStep, toHash, toWords, type State, type Store } from "./state";
import { tours } from "./tours";

/** Whether a model continues English: its card has two sentences that end with different names. */
export function isLanguageModel({ origin, kind, second }: ModelCard): boolean {
  return origin === "run" && kind === "decoder" && second !== "";
}

export const GROUPS: [title: string, holds: (model: ModelCard) => boolean][] = [
  ["From Python", ({ origin }) => origin === "given"],
  ["Language models", isLanguageModel],
  ["Bundled models", ({ origin, kind }) => origin === "shipped" && kind !== "program"],
  ["Programs", ({ origin, kind }) => origin === "shipped" && kind === "program"],
  ["Your models", (model) => model.origin === "run" && !isLanguageModel(model)],
];

const NAME = (
  <>
    <span aria-hidden="true" class="mark" />
    <span class="name">glassformer</span>
  </>
);

interface HeaderProps {
  source: Source;
  store: Store;
  state: State;
  models: ModelCard[];
  card: ModelCard | null;
}

export function Header({ source, store, state, models, card }: HeaderProps) {
  const choose = (name: string) => {
    const next = models.find((each) => each.name === name);
    if (next) store.set(startOf(next), true);
  };
  return (
    <header class="top">
      <h1>{store.home ? <a href={store.home}>{NAME}</a> : NAME}</h1>
      <label class="field model">
        <span>Model</span>
        <select aria-label="Model" value={card?.name ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          {!card && (
            <option value="" disabled selected>
              {models.length > 0 ? "Choose a model" : "\u2026"}
            </option>
          )}
          {GROUPS.map(([title, holds]) => {
            const group = models.filter(holds);
            if (group.length === 0) return null;
            return (
              <optgroup label={title}>
                {group.map((each) => (
                  <option value={each.name} selected={each.name === card?.name}>
                    {each.title}
                  </option>
                ))}
              </optgroup>
            );
          })}
        </select>
      </label>
      <div class="actions">
        {store.home !== null && state.tour === "" && <TourLink {...{ models, card }} />}
        {store.link && <CopyLink link={store.link} />}
        {source.answers("page") && card && <SavePage source={source} state={state} />}
        <Theme />
      </div>
    </header>
  );
}

/** The way to a tour: that of the model, or the first whose models are there. */
function TourLink({ models, card }: Pick<HeaderProps, "models" | "card">) {
  const names = new Set(models.map(({ name }) => name));
  const possible = tours.filter(({ steps }) => steps.every(({ state }) => names.has(state.model ?? "")));
  const tour = possible.find(({ steps }) => steps.every(({ state }) => state.model === card?.name)) ?? possible[0];
  const begin = tour && startOfStep(tour.name, 1);
  if (!begin) return null;
  return (
    <a class="button" href={toHash(begin)} title={`Tour: ${tour.title}`}>
      Tour
    </a>
  );
}

/** What a button shows on a narrow screen, where its words are read aloud alone. */
const Sign = ({ children }: { children: string }) => (
  <span class="sign" aria-hidden="true">
    {children}
  </span>
);

function CopyLink({ link }: { link: () => string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    const address = `${location.href.split("#")[0]}${link()}`;
    try {
      await navigator.clipboard.writeText(address);
    } catch {
      window.prompt("The link to this view:", address);
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  const here = location.protocol === "file:";
  return (
    <button type="button" onClick={copy}>
      <Sign>{done ? "\u2713" : "\u2197"}</Sign>
      <span class="words" aria-live="polite">{done ? `Copied${here ? ", for this computer" : ""}` : "Copy link"}</span>
    </button>
  );
}

function SavePage({ source, state }: { source: Source; state: State }) {
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const save = async () => {
    setBusy(true);
    setFault("");
    try {
      const page = await source.ask("page", { state: toWords(state) });
      download(new Blob([page], { type: "text/html" }), `glassformer-${state.model}.html`);
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" onClick={save} disabled={busy} title="One file that opens without a server or network">
        <Sign>{busy ? "\u2026" : "\u2913"}</Sign>
        <span class="words">{busy ? "Saving\u2026" : "Save page"}</span>
      </button>
      {fault && <span role="alert">{fault}</span>}
    </>
  );
}

export function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

type Shade = "auto" | "light" | "dark";

/** Shared by all pages of a notebook. */
const chosen = signal(readShade());

function Theme() {
  const shade = chosen.value;
  useLayoutEffect(() => {
    for (const page of document.querySelectorAll<HTMLElement>(".glassformer")) page.dataset.shade = shade;
    document.documentElement.dataset.shade = shade;
    try {
      localStorage.setItem("glassformer-shade", shade);
    } catch {
      // A saved file or a frame may have no storage.
    }
  }, [shade]);
  const next: Record<Shade, Shade> = { auto: "light", light: "dark", dark: "auto" };
  return (
    <button type="button" aria-label={`Colours: ${shade}. Change`} onClick={() => (chosen.value = next[shade])}>
      {{ auto: "\u25D0", light: "\u25CB", dark: "\u25CF" }[shade]}
      <span class="words"> {{ auto: "Auto", light: "Light", dark: "Dark" }[shade]}</span>
    </button>
  );
}

function readShade(): Shade {
  try {
    const kept = localStorage.getItem("glassformer-shade");
    if (kept === "light" || kept === "dark") return kept;
  } catch {
    // As above.
  }
  return "auto";
}
