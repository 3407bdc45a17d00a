// The keys of the pages, and what says that the server is away. Everything else works without.
"use strict";
(() => {
  const base = document.querySelector("header .brand")?.getAttribute("href").replace(/\/$/, "") ?? "";
  const pages = { s: "/sessions", w: "/waits", f: "/fleet", l: "/lanes" };
  let before = "", beforeAt = 0;

  const rows = () => [...document.querySelectorAll("main a.row, main article.card")];
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement.closest("a.row, article.card"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const press = (selector) => {
    const focused = document.activeElement.closest("article");
    (focused || document).querySelector(selector)?.click();
  };

  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    const second = before === "g" && Date.now() - beforeAt < 1500;
    before = e.key;
    beforeAt = Date.now();
    if (second && pages[e.key]) location.href = base + pages[e.key];
    else if (e.key === "/") document.getElementById("search")?.focus();
    else if (e.key === "j") move(1);
    else if (e.key === "k") move(-1);
    else if (e.key === "t") document.getElementById("to-timeline")?.click();
    else if (e.key === "a" || e.key === "r") press(`[aria-keyshortcuts="${e.key}"]`);
    else if (e.key === "?") document.getElementById("keys")?.showModal();
    else return;
    e.preventDefault();
  });
  document.getElementById("keys-open")?.addEventListener("click", () => document.getElementById("keys").showModal());

  const away = document.getElementById("away");
  let since = null;
  const lost = () => {
    since ||= new Date();
    away.textContent = `The coordinator is away since ${since.toLocaleTimeString()}; trying again.`;
    away.hidden = false;
  };
  const back = () => {
    since = null;
    away.hidden = true;
  };
  document.addEventListener("htmx:sse:error", lost);
  document.addEventListener("htmx:sse:close", (e) => { if (e.detail?.reason === "ended") lost(); });
  document.addEventListener("htmx:sse:after:connection", back);

  // What is new comes below; a reader who is at the end stays there.
  const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  let follows = true;
  addEventListener("scroll", () => { follows = atEnd(); }, { passive: true });
  document.addEventListener("htmx:sse:after:message", () => { if (follows) scrollTo({ top: document.documentElement.scrollHeight }); });
})();
