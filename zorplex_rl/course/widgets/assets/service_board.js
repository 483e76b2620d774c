const STATES = { ready: ["ready", "green"], starting: ["starting", "orange"], draining: ["draining", "purple"], failed: ["failed", "vermilion"] };

function render({ model, el }) {
  const title = html("p", { class: "zx-heading", style: "margin:0" }), figures = html("dl", { class: "zx-figures" }), board = html("div"), voice = announcer();
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Service board" }, title, figures, board, voice.root));

  function show() {
    const status = model.get("status"), replicas = status.replicas ?? [], number = (name) => status[name] ?? 0;
    const ready = replicas.filter(({ state }) => state === "ready").length;
    title.textContent = status.name ? `Service ${status.name}` : "No service yet";
    const figure = (name, value, note) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": value }, String(value)), html("dd", { class: "zx-note" }, note));
    figures.replaceChildren(
      figure("Ready", `${ready} of ${replicas.length}`, `replicas, ${number("restarts")} replaced so far`),
      figure("Answered", number("answered"), `${number("errors")} failed, ${number("retries")} tried again`),
      figure("Waiting", number("queue_depth"), `${number("in_flight")} in flight`),
      figure("Latency", `${Math.round(number("p50"))} ms`, `median; p99 ${Math.round(number("p99"))} ms`));
    const full = model.get("queue_limit") || Math.max(1, ...replicas.map(({ queued = 0 }) => queued));
    board.replaceChildren(html("table", { class: "zx-table zx-board", role: "table" },
      html("caption", { class: "zx-hidden" }, "Replicas"),
      html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...["replica", "state", "queue", "in flight", "requests", "up"].map((name) => html("th", { scope: "col", role: "columnheader" }, name)))),
      html("tbody", { role: "rowgroup" }, ...replicas.map((row) => {
        const [state, colour] = STATES[row.state] ?? [row.state, "orange"], queued = row.queued ?? 0;
        return html("tr", { role: "row" },
          html("th", { scope: "row", role: "rowheader" }, row.replica, row.pid ? html("span", { class: "zx-quiet" }, ` pid ${row.pid}`) : null),
          html("td", { role: "cell", "data-name": "state" }, html("span", { class: "zx-state" }, html("span", { class: "zx-dot", style: `background:var(--${colour})` }), state)),
          html("td", { role: "cell", "data-name": "queue" }, html("span", { class: "zx-queue" }, html("span", { class: "zx-track" }, html("span", { class: "zx-bar", style: `width:${Math.min(100, (100 * queued) / full)}%;${queued ? "" : "min-width:0;"}${queued >= full && model.get("queue_limit") ? "background:var(--vermilion)" : ""}` })), String(queued))),
          html("td", { role: "cell", "data-name": "in flight" }, String(row.in_flight ?? 0)),
          html("td", { role: "cell", "data-name": "requests" }, String(row.requests ?? 0)),
          html("td", { role: "cell", "data-name": "up" }, row.up ? `${Math.round(row.up)} s` : "–"));
      }))));
    const text = `${ready} of ${replicas.length} replicas ready, ${number("restarts")} restarts.`;
    if (text !== said) voice.say(text);
    said = text;
  }
  let said = "";
  model.on("change:status", show);
  show();
  return () => model.off("change:status", show);
}

export default { render };
