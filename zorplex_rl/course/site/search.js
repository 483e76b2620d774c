// Finds words in the passages of this page: lunr makes the index, here is what asks it and shows what it found.
"use strict";
(() => {
  const AT_MOST = 30, AROUND = 90;
  const passages = JSON.parse(document.getElementById("passages").textContent);
  const status = document.getElementById("search-status"), results = document.getElementById("search-results");
  const field = document.getElementById("search-all");

  // Code and prose alike: a word is a run of letters, digits and underscores.
  lunr.tokenizer.separator = /[^\p{L}\p{N}_]+/u;
  const index = lunr(function () {
    this.ref("id");
    this.field("title", { boost: 6 });
    this.field("text");
    this.metadataWhitelist = ["position"];
    passages.forEach(([, , , title, text], id) => this.add({ id, title, text }));
  });

  const split = (words) => words.toLowerCase().split(lunr.tokenizer.separator).filter(Boolean);
  // The word itself, or its stem; else what begins with it; else, for long words, what differs by one letter.
  function matches(word, last) {
    const ask = (clause) => index.query((query) => query.term(word, clause));
    const exact = ask({ boost: 10 });
    const begins = last || !exact.length ? ask({ wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false }) : [];
    const found = exact.length || begins.length || word.length < 5 ? [...exact, ...begins] : ask({ editDistance: 1 });
    const scores = new Map();
    for (const { ref, score, matchData } of found) {
      const known = scores.get(ref) ?? { score: 0, places: [] };
      const places = Object.values(matchData.metadata).flatMap((fields) => fields.text?.position ?? []);
      scores.set(ref, { score: Math.max(known.score, score), places: [...known.places, ...places] });
    }
    return scores;
  }

  /** Passages that hold all the words, best first. Words that lunr ignores, like "the", do not count. */
  function find(words) {
    const asked = words.filter((word) => lunr.stopWordFilter(new lunr.Token(word)));
    const each = asked.map((word, i) => matches(word, i === asked.length - 1));
    if (!each.length) return [];
    return [...each[0].keys()]
      .filter((ref) => each.every((scores) => scores.has(ref)))
      .map((ref) => ({ ref, score: each.reduce((sum, scores) => sum + scores.get(ref).score, 0), places: each.flatMap((scores) => scores.get(ref).places) }))
      .sort((a, b) => b.score - a.score);
  }

  const element = (tag, attributes, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  };

  /** Some words around the first match, and every match in them marked. */
  function excerpt(text, places) {
    const sorted = [...new Map(places.map((place) => [place[0], place])).values()].sort(([a], [b]) => a - b);
    const first = sorted[0]?.[0] ?? 0;
    const from = first > AROUND ? text.indexOf(" ", first - AROUND) + 1 : 0;
    const cut = text.lastIndexOf(" ", from + 3 * AROUND);
    const to = from + 3 * AROUND >= text.length || cut <= first ? Math.min(text.length, from + 3 * AROUND) : cut;
    const parts = [from > 0 ? "… " : ""];
    let done = from;
    for (const [start, length] of sorted) {
      if (start < done || start + length > to) continue;
      parts.push(text.slice(done, start), element("mark", {}, text.slice(start, start + length)));
      done = start + length;
    }
    return [...parts, text.slice(done, to), to < text.length ? " …" : ""];
  }

  function show() {
    const words = split(field.value), found = find(words);
    const count = found.length === 1 ? "1 section" : `${found.length} sections`;
    status.textContent = !words.length ? "Type a word, for example “staleness”."
      : !found.length ? `Nothing found for “${field.value.trim()}”.`
      : `${count} found for “${field.value.trim()}”${found.length > AT_MOST ? `; these are the best ${AT_MOST}` : ""}.`;
    results.replaceChildren(...found.slice(0, AT_MOST).map(({ ref, places }) => {
      const [file, page, anchor, title, text] = passages[ref];
      const link = element("a", { href: anchor ? `${file}#${anchor}` : file }, title);
      const where = title === page ? "" : ` · ${page}`;
      return element("li", {}, element("p", {}, link, element("span", { className: "where" }, where)), element("p", { className: "excerpt" }, ...excerpt(text, places)));
    }));
  }

  let timer;
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 150); });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    show();
    // So that the address leads back here with the same words.
    history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
  });
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  show();
  if (!field.value) field.focus();
})();
