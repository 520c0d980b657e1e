// The script of the console: local times, copying, selecting all, confirming, and the tail.
"use strict";
(() => {
  const format = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short",
  });

  // localise shows the times below a node in the zone of the browser, and keeps UTC as the title.
  const localise = (root) => {
    for (const t of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(t.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      t.title = t.textContent;
      t.textContent = format.format(at);
      t.dataset.local = "";
    }
  };

  const copyButtons = (root) => {
    if (!navigator.clipboard) return;
    for (const box of root.querySelectorAll(".copyable:not([data-copy])")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
      });
      box.append(" ", button);
      box.dataset.copy = "";
    }
  };

  const prepare = (root) => {
    localise(root);
    copyButtons(root);
  };

  document.addEventListener("change", (e) => {
    const all = e.target.dataset && e.target.dataset.all;
    if (!all) return;
    for (const box of e.target.form.querySelectorAll(`input[type=checkbox][name="${all}"]`)) box.checked = e.target.checked;
  });
  document.addEventListener("submit", (e) => {
    const text = e.target.dataset.confirm;
    if (text && !window.confirm(text)) e.preventDefault();
  });
  // A page that is gone, or a session that has ended: load the page as a whole, which says so.
  document.addEventListener("htmx:responseError", (e) => {
    if (e.detail.xhr.status === 401) window.location.reload();
  });
  document.addEventListener("htmx:load", (e) => prepare(e.detail.elt));
  // Who types in a part of a page keeps it as it is.
  document.addEventListener("htmx:beforeSwap", (e) => {
    const focus = document.activeElement;
    if (e.detail.target.id === "live" && focus && e.detail.target.contains(focus) && focus.matches("input, textarea, select")) e.detail.shouldSwap = false;
  });
  // A time-out or a node that restarts is no error of the page: the next poll shows it.

  const maxRows = 500;
  const tail = (box) => {
    const rows = document.getElementById("fired");
    const state = document.getElementById("tail-state");
    const button = document.getElementById("pause");
    let paused = false;
    let kept = [];
    const cell = (row, text) => { const td = document.createElement("td"); td.textContent = text; row.append(td); return td; };
    const show = (e) => {
      const row = document.createElement("tr");
      const fired = document.createElement("time");
      fired.dateTime = e.fired;
      fired.textContent = e.fired;
      cell(row, "").append(fired);
      cell(row, `${e.lateness_ms} ms`);
      const link = document.createElement("a");
      link.href = `/timers/${encodeURIComponent(e.timer)}`;
      link.textContent = e.id;
      cell(row, "").append(link);
      cell(row, e.tenant ? `${e.service} of ${e.tenant}` : e.service);
      cell(row, e.type);
      cell(row, e.event ? JSON.stringify(e.event.data ?? e.event.data_base64 ?? "") : "");
      rows.prepend(row);
      localise(row);
      while (rows.children.length > maxRows) rows.lastElementChild.remove();
    };
    const source = new EventSource(box.dataset.events);
    source.addEventListener("open", () => { if (!paused) state.textContent = "Live."; });
    source.addEventListener("error", () => { state.textContent = source.readyState === EventSource.CLOSED ? "The stream was refused: reload the page." : "Connecting again…"; });
    source.addEventListener("fired", (m) => {
      const e = JSON.parse(m.data);
      if (!paused) { show(e); return; }
      kept = [...kept.slice(1 - maxRows), e];
      state.textContent = `Paused; ${kept.length} events wait.`;
    });
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      button.textContent = paused ? "Go on" : "Pause";
      state.textContent = paused ? "Paused." : "Live.";
      if (!paused) { kept.forEach(show); kept = []; }
    });
    window.addEventListener("pagehide", () => source.close());
  };

  document.addEventListener("DOMContentLoaded", () => {
    prepare(document);
    const box = document.getElementById("tail");
    if (box) tail(box);
  });
})();
