// Finds words with Pagefind, whose files this page holds, and shows what it found.
"use strict";
(async () => {
  const AT_MOST = 30, OF_A_PAGE = 3, HELD = "https://pagefind.invalid/";
  const files = JSON.parse(document.getElementById("index").textContent);
  const status = document.getElementById("search-status"), results = document.getElementById("search-results");
  const field = document.getElementById("search-all");

  // Pagefind fetches its files. No browser fetches from a folder, so they are handed out here.
  const held = (name) => Uint8Array.from(atob(files[name]), (letter) => letter.charCodeAt(0));
  const fetched = window.fetch;
  window.fetch = async (asked, ...more) => {
    const [address] = (asked.url ?? String(asked)).split("?");
    return address.startsWith(HELD) ? new Response(held(address.slice(HELD.length))) : fetched(asked, ...more);
  };
  const pagefind = await import(URL.createObjectURL(new Blob([held("pagefind.js")], { type: "text/javascript" })));
  await pagefind.options({ basePath: HELD, baseUrl: "/", noWorker: true, excerptLength: 40 });

  const element = (tag, attributes, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  };
  // Pagefind escapes the text, and marks the words in it.
  const link = ({ url, title }) => element("a", { href: `.${url}` }, title);
  const excerpt = (found) => element("p", { className: "excerpt", innerHTML: found.excerpt });

  /** A page, and its sections with the rarest of the words. */
  function entry({ url, meta, sub_results }) {
    const weight = (section) => Math.max(...section.weighted_locations.map((place) => place.balanced_score));
    const sections = sub_results.sort((a, b) => weight(b) - weight(a)).slice(0, OF_A_PAGE);
    return element("li", {}, element("p", {}, link({ url, title: meta.title })),
      ...sections.flatMap((found) => found.title === meta.title ? [excerpt(found)] : [element("p", { className: "where" }, link(found)), excerpt(found)]));
  }

  const find = async (words) => words ? (await pagefind.search(words)).results : [];
  let newest = 0;
  async function show() {
    const words = field.value.trim(), mine = ++newest;
    let asked = words, found = await find(words);
    // A slip: what begins like it.
    while (!found.length && asked.length > 3) found = await find(asked = asked.slice(0, -1));
    const shown = await Promise.all(found.slice(0, AT_MOST).map((result) => result.data()));
    if (mine !== newest) return;
    const best = found.length > AT_MOST ? `; these are the best ${AT_MOST}` : "";
    const count = `${found.length} ${found.length === 1 ? "page" : "pages"} found for “${asked}”${best}.`;
    status.textContent = !words ? "Type a word, for example “staleness”."
      : !found.length ? `Nothing found for “${words}”.`
      : asked === words ? count : `Nothing found for “${words}”. ${count}`;
    results.replaceChildren(...shown.map(entry));
  }

  field.addEventListener("input", show);
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    // So that the address leads back here with the same words.
    history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
  });
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  if (!field.value) field.focus();
  await show();
})();
