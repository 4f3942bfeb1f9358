// What must work without asking the server: the age of the numbers, moments as "4 s ago", the colour theme, and places on the page as addresses.
(() => {
  const AGES = [[90, "s", 1], [5400, "min", 60], [129600, "h", 3600], [Infinity, "d", 86400]];
  const spoken = (seconds) => {
    const [, unit, size] = AGES.find(([limit]) => seconds < limit);
    return `${Math.round(Math.max(0, seconds) / size)} ${unit}`;
  };

  // The server's clock, carried on by this machine's: theirs may disagree.
  let stamp = "", base = 0, asOf = 0;
  const age = () => (performance.now() - base) / 1000;
  const readStamp = () => {
    const label = document.getElementById("sao-age");
    if (!label || label.dataset.stamp === stamp || !label.dataset.stamp) return;
    stamp = label.dataset.stamp;
    asOf = Number(stamp);
    base = performance.now() - 1000 * Number(label.dataset.age);
  };
  const tellTimes = () => {
    if (!stamp) return;
    const now = asOf + age();
    document.querySelectorAll("time[data-at]").forEach((moment) => {
      const text = `${spoken(now - Number(moment.dataset.at))} ago`;
      if (moment.textContent !== text) {
        moment.title ||= moment.textContent;
        moment.textContent = text;
      }
    });
  };
  const tellAge = () => {
    readStamp();
    const label = document.getElementById("sao-age");
    if (!label) return;
    const old = stamp && age() > 5;
    const text = stamp ? `updated ${spoken(age())} ago` : "no numbers yet";
    if (label.textContent !== text) label.textContent = text;
    label.classList.toggle("alarm", Boolean(old));
    document.body.classList.toggle("stale", Boolean(old));
    const banner = document.getElementById("sao-stale");
    if (banner) {
      banner.hidden = !old;
      if (old) banner.textContent = `The server does not answer. What you see is ${spoken(age())} old.`;
    }
    tellTimes();
  };
  setInterval(tellAge, 500);

  // Theme: as the system has it, until somebody chooses.
  const THEMES = { auto: null, light: false, dark: true };
  const theme = () => { try { return localStorage.getItem("sao-theme") || "auto"; } catch { return "auto"; } };
  const applyTheme = () => {
    if (typeof setDark === "function" && (theme() !== "auto" || document.body.dataset.themed)) {
      setDark(THEMES[theme()] ?? null);
      document.body.dataset.themed = "yes";
    }
    const button = document.getElementById("sao-theme");
    if (button) {
      button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme()];
      button.setAttribute("aria-label", `Colours: ${{ auto: "as the system", light: "light", dark: "dark" }[theme()]}. Press to change.`);
    }
  };
  const nextTheme = () => {
    const names = Object.keys(THEMES);
    try { localStorage.setItem("sao-theme", names[(names.indexOf(theme()) + 1) % names.length]); } catch { /* private mode */ }
    applyTheme();
  };

  // Places on the page have addresses, and going there loads nothing anew.
  const go = (search, push = true) => {
    if (push) history.pushState(null, "", search);
    emitEvent("sao-go", search);
  };
  addEventListener("popstate", () => go(location.search, false));
  document.addEventListener("click", (event) => {
    if (event.target.closest("#sao-theme")) return nextTheme();
    const press = event.target.closest("[data-do]");
    if (press) return emitEvent("sao-do", { action: press.dataset.do, value: press.dataset.value });
    const link = event.target.closest("a[data-go]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(link.getAttribute("href"));
    if (link.closest("nav, .results, .back, .pager")) scrollTo(0, 0);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-form]")) return;
    event.preventDefault();
    const fields = [...new FormData(event.target)].filter(([, value]) => value !== "");
    go(`?${new URLSearchParams(fields)}`);
  });
  document.addEventListener("change", (event) => {
    const field = event.target.closest("[data-param]");
    if (!field) return;
    const query = new URLSearchParams(location.search);
    query.set(field.dataset.param, field.value);
    go(`?${query}`);
  });

  // A panel whose content is replaced keeps the focus and what was opened in it.
  let focused = null;
  const opened = new Set();
  document.addEventListener("focusin", (event) => { focused = event.target.dataset?.key ?? null; });
  document.addEventListener("toggle", (event) => {
    const key = event.target.dataset?.key;
    if (key) event.target.open ? opened.add(key) : opened.delete(key);
  }, true);
  new MutationObserver(() => {
    tellTimes();
    document.querySelectorAll("details[data-key]:not([open])").forEach((part) => { if (opened.has(part.dataset.key)) part.open = true; });
    if (focused && document.activeElement === document.body) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }).observe(document, { childList: true, subtree: true });

  addEventListener("load", () => setTimeout(applyTheme, 0));
})();
