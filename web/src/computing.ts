// A saved page that computes: its model answers in a worker, or in the page where there are no workers. What the model does
// not answer, or cannot any more, is answered by what was recorded.
import { signal, type ReadonlySignal } from "@preact/signals";
import { Engine, isComputed, type Computed, type SavedModel } from "./engine/engine";
import { Refused, Unknown, refusalOf, type Calls, type Refusal, type Source } from "./source";

/** What a worker is sent, and what it answers. */
type Request = { model: SavedModel } | { id: number; call: Computed; asked: never } | { cancelled: number };
type Reply = { ready: true } | { fault: Refusal } | { id: number; answer: unknown } | { id: number; refusal: Refusal; unknown: boolean };

/** Answers the calls of an engine; rejects with an AbortError when `signal` aborts. */
type Answering = <N extends Computed>(call: N, asked: Calls[N]["asked"], signal: AbortSignal) => Promise<Calls[N]["answered"]>;

export interface Computing extends Source {
  /** Why the model does not answer; null while it does, or while it is opened. */
  readonly fault: ReadonlySignal<Refusal | null>;
}

/** Milliseconds of computation after which other things have their turn. */
const TURN = 12;

const STOPPED: Refusal = { got: "The model has stopped", expected: "enough memory", fix: "Reload the page, and read a shorter text." };

export function computing(recorded: Source, model: SavedModel): Computing {
  const fault = signal<Refusal | null>(null);
  let ready = false;
  const opened = inWorker(model, () => ready && (fault.value = STOPPED))
    .catch((error: unknown) => (error instanceof Refused ? Promise.reject(error) : inPage(model)))
    .then((answering) => ((ready = true), answering));
  opened.catch((error: unknown) => (fault.value = refusalOf(error)));
  return {
    fault,
    typing: 0,
    answers: (name) => isComputed(model, name) && fault.value === null,
    shows: (view) => fault.value === null || recorded.shows(view),
    async ask(name, asked, wanted = new AbortController().signal) {
      if (!isComputed(model, name) || fault.value !== null) return recorded.ask(name, asked, wanted);
      if (!ready) {
        // The model takes a moment to open, and what is shown first was recorded.
        try {
          return await recorded.ask(name, asked, wanted);
        } catch {
          const failed = await opened.then(() => false, () => true);
          if (failed) return recorded.ask(name, asked, wanted);
        }
      }
      wanted.throwIfAborted();
      return (await opened)(name, asked as never, wanted) as never;
    },
  };
}

/** An engine in the page itself. */
async function inPage(model: SavedModel): Promise<Answering> {
  const engine = new Engine(model);
  return (call, asked, wanted) => engine.answer(call, asked, pausing(wanted));
}

/** Lets other events have their turn; throws when they aborted the computation. */
function pausing(wanted: AbortSignal): () => Promise<void> {
  let since = performance.now();
  return async () => {
    if (performance.now() - since < TURN) return;
    await new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => (port1.close(), resolve(null));
      port2.postMessage(null);
    });
    wanted.throwIfAborted();
    since = performance.now();
  };
}

/** An engine in a worker, which runs the module that a saved file contains; `lost` is called when it stops. */
function inWorker(model: SavedModel, lost: () => void): Promise<Answering> {
  return new Promise((resolve, reject) => {
    // As a script: from the disk, Chromium opens no worker that is a module. The module imports nothing.
    const code = document.querySelector("script[type=module]:not([src])")?.textContent ?? "";
    const script = `"use strict";{${code.replace(/export\s*\{[^}]*\};?\s*$/, "")}}`;
    const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    const waiting = new Map<number, { resolve: (answer: never) => void; reject: (error: unknown) => void }>();
    let asked = 0;
    const answering: Answering = (call, request, wanted) =>
      new Promise((answered, refused) => {
        const id = asked++;
        const cancel = () => {
          waiting.delete(id);
          worker.postMessage({ cancelled: id });
          refused(wanted.reason);
        };
        const done = () => wanted.removeEventListener("abort", cancel);
        wanted.addEventListener("abort", cancel, { once: true });
        waiting.set(id, { resolve: (answer) => (done(), answered(answer)), reject: (error) => (done(), refused(error)) });
        worker.postMessage({ id, call, asked: request });
      });
    worker.onerror = (event) => {
      event.preventDefault();
      reject(event);
      lost();
      for (const { reject: refused } of waiting.values()) refused(new Refused(STOPPED));
    };
    worker.onmessage = ({ data }: MessageEvent<Reply>) => {
      if ("ready" in data) return resolve(answering);
      if ("fault" in data) return reject(new Refused(data.fault));
      const of = waiting.get(data.id);
      waiting.delete(data.id);
      if ("answer" in data) of?.resolve(data.answer as never);
      else of?.reject(new (data.unknown ? Unknown : Refused)(data.refusal));
    };
    worker.postMessage({ model });
  });
}

/** The other side, in a worker: waits for a model, then answers calls about it. */
export function answerInWorker(page: Window & typeof globalThis): void {
  let engine: Engine;
  const wanted = new Map<number, AbortController>();
  const tell = (reply: Reply) => page.postMessage(reply);
  page.onmessage = async ({ data }: MessageEvent<Request>) => {
    if ("cancelled" in data) return wanted.get(data.cancelled)?.abort();
    if ("model" in data) {
      try {
        engine = new Engine(data.model);
        return tell({ ready: true });
      } catch (error) {
        return tell({ fault: refusalOf(error) });
      }
    }
    const { id, call, asked } = data;
    const own = new AbortController();
    wanted.set(id, own);
    try {
      tell({ id, answer: await engine.answer(call, asked, pausing(own.signal)) });
    } catch (error) {
      tell({ id, refusal: refusalOf(error), unknown: error instanceof Unknown });
    } finally {
      wanted.delete(id);
    }
  };
}
