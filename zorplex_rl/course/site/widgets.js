// Draws every widget of the page with the state that the notebook's run has left: what an anywidget host does, less the kernel.
"use strict";
(() => {
  // Widgets tell by this name that no Python will answer them.
  window.__MARIMO_STATIC__ ??= Object.freeze({});
  const models = JSON.parse(document.getElementById("models").textContent);

  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

  function makeModel({ state, buffers }) {
    for (const [path, data] of Object.entries(buffers)) {
      const keys = JSON.parse(path);
      const last = keys.pop();
      keys.reduce((place, key) => place[key], state)[last] = bytes(data);
    }
    const listeners = new Map();
    const tell = (event, ...values) => [...(listeners.get(event) ?? [])].forEach((listener) => listener(...values));
    return {
      get: (name) => state[name],
      set(name, value) {
        const changes = typeof name === "object" ? name : { [name]: value };
        for (const [key, found] of Object.entries(changes)) {
          if (state[key] === found) continue;
          state[key] = found;
          tell(`change:${key}`, {}, found);
          tell("change", {});
        }
      },
      on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
      off(event, listener) {
        if (event === undefined) listeners.clear();
        else listeners.set(event, listener ? (listeners.get(event) ?? []).filter((other) => other !== listener) : []);
      },
      save_changes() {},
      send() {},
    };
  }

  const drawn = new Map();
  async function draw(place) {
    const { esm, state, buffers } = models[place.dataset.model];
    const module = await import(esm);
    const widget = typeof module.default === "function" ? await module.default() : (module.default ?? module);
    let model = drawn.get(place.dataset.model);
    if (!model) {
      model = makeModel({ state, buffers });
      drawn.set(place.dataset.model, model);
      await widget.initialize?.({ model });
    }
    const root = place.attachShadow({ mode: "open" });
    if (state._css) root.append(Object.assign(document.createElement("style"), { textContent: state._css }));
    const element = document.createElement("div");
    root.append(element);
    await widget.render({ model, el: element });
  }

  for (const place of document.querySelectorAll(".widget[data-model]")) {
    draw(place).catch((error) => {
      place.textContent = `This widget could not be drawn: ${error.message}`;
      throw error;
    });
  }
})();
