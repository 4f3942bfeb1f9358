// Counts on by itself: if the page loses its server, the numbers say so instead of looking fresh.
(() => {
  let stamp = "", base = 0;
  setInterval(() => {
    const label = document.getElementById("sao-age");
    if (!label) return;
    if (label.dataset.stamp !== stamp) { stamp = label.dataset.stamp; base = performance.now() - 1000 * label.dataset.age; }
    const age = (performance.now() - base) / 1000;
    label.textContent = stamp ? `numbers ${age < 90 ? Math.round(age) + " s" : Math.round(age / 60) + " min"} old` : "no numbers yet";
    label.classList.toggle("alarm", age > 5);
  }, 500);
})();
