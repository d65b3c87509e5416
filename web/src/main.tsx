// Entry points: the server's page calls `start`, a notebook's widget the default export's `render`, a saved file `open`.
import type { Signal } from "@preact/signals";
import { render as draw, type VNode } from "preact";
import { App } from "./app";
import "./style.css";
import "./parts.css";
import "./saved.css";
import "./widget.css";
import { answerInWorker, computing, type Computing } from "./computing";
import { Engine } from "./engine/engine";
import { fromSaved, type Saved } from "./saved";
import { capital } from "./parts";
import { fromServer } from "./source";
import { inAddress } from "./state";
import { overMessages, shared, type Model } from "./widget";

/** Show the page that this server serves. */
export function start(place: HTMLElement): void {
  draw(<App source={fromServer()} store={inAddress()} within="window" />, place);
}

/** Show a saved page. */
export function open(place: HTMLElement, saved: Saved): void {
  const computed = saved.model && computing(fromSaved(saved), saved.model);
  const page = (
    <>
      {saved.state.model && <SavedNote {...{ saved, computed }} />}
      <App source={computed ?? fromSaved(saved)} store={inAddress({ words: saved.state, pages: saved.pages })} within="file" />
    </>
  );
  draw(page, place);
}

/** What a page computes that holds a model of this kind. */
const HOLDS = {
  transformer: "It holds the model: other texts are read, and changes of the model computed, in this page.",
  head: "It holds the head: other texts are read, and other weights proved or refuted, in this page.",
  program: "It holds the compiled program: other texts are read in this page. The proof is a recording, and written programs are not judged.",
};

function SavedNote({ saved, computed }: { saved: Saved; computed: Computing | null }) {
  const fault = computed?.fault.value ?? null;
  const computes = computed !== null && fault === null;
  return (
    <aside class="glassformer note" aria-label="About this file">
      <div>
        <span>
          Saved with glassformer {saved.version}: a copy that works without a server.{" "}
          {computes
            ? HOLDS[saved.model!.kind]
            : "It holds what this view showed when it was saved; nothing new is computed."}
        </span>
        {fault && <span role="alert">{`${capital(fault.got)}: what was recorded is shown. Expected: ${fault.expected}. ${fault.fix}`}</span>}
        {!computes && saved.left_out.map((what) => <span>{what}</span>)}
      </div>
    </aside>
  );
}

/** Called by anywidget for each display of a widget. */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const source = overMessages(model);
  const store = shared(model);
  // Otherwise JupyterLab's shortcuts would take the page's keys: "d d" would delete the cell, and Enter press no button.
  // The attribute does not hold back those of the element that has the focus.
  el.dataset.lmSuppressShortcuts = "true";
  el.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  const page = (
    <>
      <KernelNote silent={source.silent} />
      <App source={source} store={store} within="notebook" />
    </>
  );
  draw(numbered(page), el);
  return () => {
    store.close();
    source.close();
    draw(null, el);
  };
}

function KernelNote({ silent }: { silent: Signal<boolean> }) {
  return (
    <div class="glassformer note" role="status">
      {silent.value && (
        <div>No answer yet from the notebook's kernel. It may be busy; if it has ended, run this cell again.</div>
      )}
    </div>
  );
}

/**
 * Each widget of a notebook is a separate tree, and Preact's useId counts from 0 in each. Without a distinct number here,
 * which Preact reads as `_mask`, a label of one widget would name a control of another.
 */
function numbered(page: VNode): VNode {
  return Object.assign(page, { __m: [crypto.getRandomValues(new Uint32Array(1))[0], 0] });
}

// A saved file contains this module, which cannot be imported there: it opens the data beside it.
// Its worker runs this module, too.
function openFile(): void {
  const beside = document.querySelector<HTMLScriptElement>("script#glassformer-saved:not([data-opened])");
  const place = document.getElementById("explorer");
  if (!beside || !place) return;
  beside.dataset.opened = "";
  open(place, JSON.parse(beside.textContent ?? "") as Saved);
}

if (typeof document !== "undefined") openFile();
else if (typeof self !== "undefined") answerInWorker(self);

export { Engine, fromSaved };
export default { render };
