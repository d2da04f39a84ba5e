// A page that shows widgets as anywidget does, in a real browser: what the tests of notebooks stand on.
import { empty } from "./opened.mjs";

/**
 * A fresh page with a cell for each state; `window.models` are the cells' models, `window.leave` what takes them away.
 * @param states what Python sent for each widget; bytes as {base64}
 */
export async function notebook(browser, states, options = {}, style = "") {
  const { page, close } = await empty(browser, { viewport: { width: 1000, height: 900 }, ...options });
  await page.setContent(`<!doctype html><html lang="en"><head><title>notebook</title><style>${style}</style></head><body><main></main></body></html>`);
  await page.evaluate(async (all) => {
    window.models = [];
    window.leave = [];
    for (const state of all) {
      const values = new Map(Object.entries(state).map(([name, value]) => {
        if (value === null || value.base64 === undefined) return [name, value];
        const text = atob(value.base64);
        const bytes = new Uint8Array(text.length + 3); // as parts of a message lie: anywhere in it
        for (let i = 0; i < text.length; i++) bytes[i + 3] = text.charCodeAt(i);
        return [name, new DataView(bytes.buffer, 3)];
      }));
      const listeners = [];
      const model = {
        saved: 0,
        get: (name) => values.get(name),
        set: (name, value) => {
          const other = values.get(name) !== value;
          values.set(name, value);
          if (other) for (const [event, act] of [...listeners]) if (event === `change:${name}`) act();
        },
        save_changes: () => (model.saved += 1),
        on: (event, act) => listeners.push([event, act]),
        off: (event, act) => listeners.splice(listeners.findIndex((each) => each[0] === event && each[1] === act), 1),
        listeners,
      };
      const place = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
      const { default: widget } = await import(place);
      URL.revokeObjectURL(place);
      const el = document.createElement("div");
      window.models.push(model);
      window.leave.push(await widget.render({ model, el, experimental: {} }));
      // As ipywidgets does: what is drawn comes into the page after it has been drawn.
      document.querySelector("main").append(el);
    }
  }, states);
  return { page, close };
}
