// The keys of the pages, what says that the server is away, and what keeps a reader in the place
// that is read. Everything else works without.
"use strict";
(() => {
  const base = document.querySelector("header .brand")?.getAttribute("href").replace(/\/$/, "") ?? "";
  const pages = { s: "/sessions", w: "/waits", c: "/calls", f: "/fleet", l: "/lanes" };
  let before = "", beforeAt = 0;

  const rows = () => [...document.querySelectorAll("main a.row, main article.card")].filter((e) => !e.matches("article a.row"));
  const show = (element) => {
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest" });
  };
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement.closest("article.card") ?? document.activeElement.closest("a.row"));
    show(all[Math.min(Math.max(at + by, 0), all.length - 1)]);
  };
  // Answers are given to the call that has the focus: the first press only chooses it.
  const press = (key) => {
    const focused = document.activeElement.closest("article.ask");
    if (!focused) {
      const first = document.querySelector("main article.ask");
      if (first) show(first);
      return;
    }
    const target = focused.querySelector(`[aria-keyshortcuts="${key}"]`);
    if (target?.matches("input")) target.focus();
    else target?.click();
  };

  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) {
      if (e.key === "Escape" && e.target.matches("input, textarea, select")) e.target.blur();
      return;
    }
    const second = before === "g" && Date.now() - beforeAt < 1500;
    before = second ? "" : e.key;
    beforeAt = Date.now();
    if (second && pages[e.key]) location.href = base + pages[e.key];
    else if (e.key === "/") document.getElementById("search")?.focus();
    else if (e.key === "j") move(1);
    else if (e.key === "k") move(-1);
    else if (e.key === "e") toEnd();
    else if (e.key === "t") document.getElementById("to-timeline")?.click();
    else if (e.key === "Enter" && document.activeElement.matches("article.card")) document.activeElement.querySelector("a.row")?.click();
    else if (e.key === "a" || e.key === "s" || e.key === "r") press(e.key);
    else if (e.key === "?") document.getElementById("keys")?.showModal();
    else return;
    e.preventDefault();
  });
  document.getElementById("keys-open")?.addEventListener("click", () => document.getElementById("keys").showModal());

  // While the server is away, a page asks for it; when it is back, the page is renewed.
  const away = document.getElementById("away");
  let since = null, asks = 0;
  const lost = () => {
    if (since) return;
    since = new Date();
    away.textContent = `The coordinator is away since ${since.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}; trying again.`;
    away.hidden = false;
    asks = setInterval(async () => {
      try {
        if ((await fetch(`${base}/assets/icon.svg`, { method: "HEAD", cache: "no-store" })).ok) back();
      } catch { /* it is still away */ }
    }, 2000);
  };
  const back = () => {
    if (!since) return;
    since = null;
    clearInterval(asks);
    away.hidden = true;
    if (document.querySelector("#turns[hx-sse\\:connect]") || document.querySelector("main :is(input, textarea):focus")) return;
    htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerMorph" });
  };
  document.addEventListener("htmx:error", lost);
  document.addEventListener("htmx:sse:error", lost);
  document.addEventListener("htmx:sse:close", (e) => { if (e.detail?.reason === "ended") lost(); });
  document.addEventListener("htmx:sse:after:connection", back);

  // What is new comes below: a reader who is at the end stays there, and one who is not sees how
  // much came.
  const turns = document.getElementById("turns");
  const newer = document.getElementById("newer");
  const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
  let follows = true, came = 0;
  const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
  const count = (n) => {
    came = n;
    if (!newer) return;
    newer.hidden = n === 0;
    newer.textContent = `${n} new`;
    newer.setAttribute("aria-label", `${n} new below: go to the end`);
  };
  newer?.addEventListener("click", toEnd);
  addEventListener("scroll", () => {
    follows = atEnd();
    if (follows) count(0);
  }, { passive: true });
  if (turns) {
    if (turns.hasAttribute("data-open") && !location.hash) toEnd();
    follows = atEnd();
    new MutationObserver((changes) => {
      if (follows) return;
      const added = changes.flatMap((c) => [...c.addedNodes]).filter((n) => n.matches?.(".item, .turn")).length;
      if (added) count(came + added);
    }).observe(turns, { childList: true, subtree: true });
    document.addEventListener("htmx:sse:after:message", () => { if (follows) toEnd(); });
  }

  // What was sent is not sent again.
  document.addEventListener("htmx:after:request", (e) => {
    if (e.target.matches?.("form.send") && e.detail?.ctx?.response?.status < 300) e.target.reset();
  });

  // Choosing a call marks it on both sides, and shows when and why to the right.
  let chosen = "", timer = 0;
  const choose = (id) => {
    if (id === chosen) return;
    chosen = id;
    mark();
    clearTimeout(timer);
    timer = setTimeout(() => {
      const card = document.getElementById(`call-${id}`);
      if (card?.dataset.brief && document.getElementById("chosen")) htmx.ajax("GET", card.dataset.brief, { target: "#chosen", swap: "innerHTML" });
    }, 200);
  };
  const mark = () => {
    for (const e of document.querySelectorAll(".sel")) if (e.dataset.call !== chosen) e.classList.remove("sel");
    if (chosen) for (const e of document.querySelectorAll(`[data-call="${CSS.escape(chosen)}"]`)) e.classList.add("sel");
  };
  const of = (e) => e.target.closest?.("[data-call]")?.dataset.call;
  document.addEventListener("focusin", (e) => { if (of(e)) choose(of(e)); });
  document.addEventListener("click", (e) => { if (of(e)) choose(of(e)); });
  document.addEventListener("htmx:sse:after:message", mark);
  const toHash = () => {
    const card = location.hash.startsWith("#call-") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (card) show(card);
  };
  addEventListener("hashchange", toHash);
  toHash();
})();
