// A notebook's widget: requests go to the kernel as messages, and the state is shared with Python.
import { Refused, TYPING, Unknown, floats, type CallName, type Refusal, type Source } from "./source";
import { fromWords, toWords, type Address, type Store, type Words } from "./state";
import { signal, type Signal } from "@preact/signals";

/** The part of anywidget's model that is used here. */
export interface Model {
  get(name: "state"): Words;
  get(name: "_page"): string;
  set(name: "state", words: Words): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, heard: (...values: never[]) => void): void;
  off(event: string, heard: (...values: never[]) => void): void;
}

interface Reply {
  id: string;
  answer?: unknown;
  refusal?: Refusal;
  /** Whether it was refused because of an unknown name. */
  unknown?: boolean;
}

interface Waiting {
  id: string;
  call: CallName;
  asked: unknown;
  answered: (answer: unknown) => void;
  refused: (error: unknown) => void;
}

/** Requests sent at once. The kernel answers one after another; obsolete requests in the queue are never sent. */
const MOST_UNDER_WAY = 4;
/** Milliseconds without an answer after which the page shows a note. */
const SILENT = 4000;
/** JupyterLab sends nothing more for a widget whose kernel was restarted. */
const ENDED = { got: "the notebook's kernel, which has ended", expected: "the one with this widget", fix: "Run this cell again." };

export interface Closing {
  close(): void;
}

/** A widget's kernel. All displays of one widget receive all replies; each recognises its own by their ids. */
export function overMessages(model: Model): Source & Closing & { silent: Signal<boolean> } {
  const mine = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const queue: Waiting[] = [];
  const underWay = new Map<string, Waiting>();
  const silent = signal(false);
  let asked = 0;
  let due = 0;

  const listen = () => {
    clearTimeout(due);
    due = underWay.size === 0 ? 0 : window.setTimeout(() => (silent.value = true), SILENT);
  };
  const next = () => {
    while (underWay.size < MOST_UNDER_WAY) {
      const first = queue.shift();
      if (!first) return;
      try {
        model.send({ kind: "ask", id: first.id, call: first.call, asked: first.asked });
      } catch {
        first.refused(new Refused(ENDED));
        continue;
      }
      underWay.set(first.id, first);
      if (due === 0) listen();
    }
  };
  const hear = (reply: Reply, buffers: readonly (DataView | ArrayBuffer)[] = []) => {
    const waiting = underWay.get(reply?.id);
    if (!waiting) return;
    underWay.delete(waiting.id);
    silent.value = false;
    listen();
    if (reply.refusal) waiting.refused(new (reply.unknown ? Unknown : Refused)(reply.refusal));
    else waiting.answered(buffers[0] ? floats(buffers[0]) : reply.answer);
    next();
  };
  model.on("msg:custom", hear);

  return {
    typing: TYPING,
    answers: () => true,
    shows: () => true,
    silent,
    ask(name, question, signal) {
      return new Promise((resolve, reject) => {
        const id = `${mine}-${asked++}`;
        const stop = () => {
          const at = queue.findIndex((each) => each.id === id);
          if (at >= 0) queue.splice(at, 1);
          reject(new DOMException("No longer wanted", "AbortError"));
        };
        if (signal?.aborted) return stop();
        signal?.addEventListener("abort", stop, { once: true });
        const done = () => signal?.removeEventListener("abort", stop);
        queue.push({
          id,
          call: name,
          asked: question,
          answered: (answer) => (done(), resolve(answer as never)),
          refused: (error) => (done(), reject(error)),
        });
        next();
      });
    },
    close() {
      model.off("msg:custom", hear);
      queue.length = 0;
      clearTimeout(due);
    },
  };
}

/** The state that Python has as `exploration.state`: a change on either side is followed by the other. */
export function shared(model: Model): Store & Closing {
  const state = signal(fromWords(model.get("state")));
  let due = 0;
  const same = (words: Words) => JSON.stringify(toWords(fromWords(words))) === JSON.stringify(toWords(state.value));
  const follow = () => {
    const words = model.get("state");
    if (!same(words)) state.value = fromWords(words);
  };
  const tell = () => {
    if (same(model.get("state"))) return;
    model.set("state", toWords(state.value));
    model.save_changes();
  };
  model.on("change:state", follow);
  return {
    state,
    writing: signal(false),
    home: null,
    link: null,
    set(change: Partial<Address>) {
      state.value = { ...state.value, ...change };
      clearTimeout(due);
      // Hovering and sliders change it many times a second; the kernel gets the last of these changes.
      due = window.setTimeout(tell, 150);
    },
    close() {
      model.off("change:state", follow);
      clearTimeout(due);
      tell();
    },
  };
}
