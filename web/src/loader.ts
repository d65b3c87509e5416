// Stored with every widget in a notebook's file: loads the page's code, which the kernel sends once for all
// widgets.
import type { Model } from "./widget";

interface Page {
  default: { render(given: { model: Model; el: HTMLElement }): () => void };
}

/** By the code's digest, since notebooks of several versions may be open in one window. */
const pages = ((globalThis as { glassformerPages?: Map<string, Promise<Page>> }).glassformerPages ??= new Map());
/** Milliseconds without an answer after which the page shows a note. */
const SILENT = 4000;

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const name = model.get("_page");
  let close = () => {};
  let closed = false;
  const silent = setTimeout(() => {
    el.innerHTML =
      '<div class="glassformer note" role="status"><div>No answer yet from the notebook\u2019s kernel, which holds this ' +
      "page. It may be busy; if it has ended, run this cell again.</div></div>";
  }, SILENT);
  const show = async (page: Promise<Page>) => {
    clearTimeout(silent);
    const { default: shown } = await page;
    if (closed) return;
    el.replaceChildren();
    close = shown.render({ model, el });
  };
  const hear = (message: { kind?: string }, buffers: readonly (DataView<ArrayBuffer> | ArrayBuffer)[] = []) => {
    if (message?.kind !== "code" || !buffers[0]) return;
    model.off("msg:custom", hear);
    let page = pages.get(name);
    if (!page) {
      const address = URL.createObjectURL(new Blob([buffers[0]], { type: "text/javascript" }));
      page = (import(address) as Promise<Page>).finally(() => URL.revokeObjectURL(address));
      pages.set(name, page);
    }
    void show(page);
  };
  const there = pages.get(name);
  if (there) void show(there);
  else {
    model.on("msg:custom", hear);
    model.send({ kind: "code" });
  }
  return () => {
    closed = true;
    clearTimeout(silent);
    model.off("msg:custom", hear);
    close();
  };
}

export default { render };
