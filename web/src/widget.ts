// A notebook's cell: questions go to the kernel as messages, and the state is shared with Python.
import { Refused, floats, type CallName, type Refusal, type Source } from "./source";
import { fromWords, toWords, type State, type Store, type Words } from "./state";
import { signal, type Signal } from "@preact/signals";

/** What of anywidget's model is used here. */
export interface Model {
  get(name: "state"): Words;
  set(name: "state", words: Words): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, heard: (...told: never[]) => void): void;
  off(event: string, heard: (...told: never[]) => void): void;
}

interface Reply {
  id: string;
  answer?: unknown;
  refusal?: Refusal;
}

interface Waiting {
  id: string;
  call: CallName;
  asked: unknown;
  answered: (answer: unknown) => void;
  refused: (error: unknown) => void;
}

/** Questions that are on their way at once: a kernel answers one after another, and what is no longer wanted is never sent. */
const MOST_UNDER_WAY = 4;
/** Milliseconds without an answer after which a person is told. */
const SILENT = 4000;

export interface Closing {
  close(): void;
}

/** The kernel behind a widget. Several views of one widget hear all replies: each knows its own by their names. */
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
      underWay.set(first.id, first);
      model.send({ kind: "ask", id: first.id, call: first.call, asked: first.asked });
      if (due === 0) listen();
    }
  };
  const hear = (reply: Reply, buffers: readonly (DataView | ArrayBuffer)[] = []) => {
    const waiting = underWay.get(reply?.id);
    if (!waiting) return;
    underWay.delete(waiting.id);
    silent.value = false;
    listen();
    if (reply.refusal) waiting.refused(new Refused(reply.refusal));
    else waiting.answered(buffers[0] ? floats(buffers[0]) : reply.answer);
    next();
  };
  model.on("msg:custom", hear);

  return {
    live: true,
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

/** The state that Python sees as `exploration.state`: each side may change it, and the other follows. */
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
    set(change: Partial<State>) {
      state.value = { ...state.value, ...change };
      clearTimeout(due);
      // Hovering and sliders change it many times a second; the kernel is told of where they come to rest.
      due = window.setTimeout(tell, 150);
    },
    close() {
      model.off("change:state", follow);
      clearTimeout(due);
      tell();
    },
  };
}
