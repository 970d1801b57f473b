// The parts of the pages that move: live tables and charts, keys, and the choice of light or dark.
"use strict";

(() => {
  const main = document.querySelector("main");
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const MOST_SAMPLES = 450;

  // --- charts -----------------------------------------------------------------------------------------------

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  class Chart {
    constructor(figure) {
      this.plot = figure.querySelector(".plot");
      this.series = JSON.parse(figure.dataset.series);
      this.data = [[], ...this.series.map(() => [])];
      this.drawn = null;
      this.plot.textContent = "The first figures come in a moment.";
      new ResizeObserver(() => this.resize()).observe(figure);
    }

    add(time, figures) {
      if (!this.series.some(([name]) => name in figures)) return;
      this.data[0].push(time);
      this.series.forEach(([name], index) => this.data[index + 1].push(figures[name] ?? null));
      if (this.data[0].length > MOST_SAMPLES) this.data.forEach((values) => values.shift());
    }

    draw() {
      if (this.data[0].length < 2) return;
      if (this.drawn) {
        this.drawn.setData(this.data);
        return;
      }
      this.plot.textContent = "";
      const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
      const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
      this.drawn = new uPlot({
        width: this.plot.clientWidth,
        height: 170,
        padding: [8, 8, 0, 0],
        cursor: { y: false },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [{ ...axis, space: 80, size: 28, values: (_, values) => values.map((each) => new Date(each * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 55, values: (_, values) => values.map((each) => short.format(each)) }],
        series: [
          { label: "at", value: (_, value) => value === null ? "–" : new Date(value * 1000).toISOString().slice(11, 19) },
          ...this.series.map(([, label], index) => ({
            label,
            stroke: color(index ? "--second" : "--first"),
            width: 2,
            points: { show: false },
            value: (_, value) => value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }),
          })),
        ],
      }, this.data, this.plot);
    }

    resize() {
      if (this.drawn) this.drawn.setSize({ width: this.plot.clientWidth, height: 170 });
    }

    redraw() {
      if (this.drawn) this.drawn.destroy();
      this.drawn = null;
      this.draw();
    }
  }

  const charts = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure));

  // --- live pages -------------------------------------------------------------------------------------------

  const beganAsProblem = Boolean(live && live.querySelector(".problem"));
  let last = 0;

  const tell = (text) => {
    connection.textContent = text;
    connection.hidden = !text;
  };

  const show = (html) => {
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.innerHTML = html;
    if (focused) [...live.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    // A page that could not be loaded at first has no head yet.
    if (beganAsProblem && !live.querySelector(".problem")) location.reload();
  };

  const take = (event) => {
    const sample = JSON.parse(event.data);
    tell("");
    if (sample.html !== undefined) show(sample.html);
    for (const [time, figures] of [...(sample.history ?? []), [sample.time, sample.figures]]) {
      if (time <= last) continue;
      last = time;
      charts.forEach((chart) => chart.add(time, figures));
    }
    charts.forEach((chart) => chart.draw());
  };

  let source = null;
  const listen = () => {
    source = new EventSource(location.pathname + location.search);
    source.addEventListener("sample", take);
    source.addEventListener("error", () => {
      tell(source.readyState === EventSource.CLOSED
        ? "This page is not updated any more. Load it again."
        : "The dashboard does not answer. What you see may be old; the page tries again.");
    });
  };
  if (main && "live" in main.dataset) {
    listen();
    // A browser has few connections to a server, so a page that is not seen gives its own back.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) source.close();
      else if (source.readyState === EventSource.CLOSED) listen();
    });
    addEventListener("pagehide", () => source.close());
  }

  // --- keys -------------------------------------------------------------------------------------------------

  const help = document.getElementById("help");
  let isGoing = false;

  const isTyping = (element) => element.matches("input, select, textarea");

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (isGoing) {
      isGoing = false;
      const link = [...document.querySelectorAll("nav a[data-key]")].find((each) => each.dataset.key === event.key);
      if (link) location.assign(link.href);
    } else if (event.key === "g") {
      isGoing = true;
    } else if (event.key === "?") {
      help.showModal();
    } else if (event.key === "/") {
      const filter = document.querySelector("[data-filter]");
      if (filter) {
        event.preventDefault();
        filter.focus();
        filter.select();
      }
    }
  });
  document.getElementById("help-button").addEventListener("click", () => help.showModal());

  // --- the rest ---------------------------------------------------------------------------------------------

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `ferromq_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    charts.forEach((chart) => chart.redraw());
  });

  document.querySelectorAll("[data-all]").forEach((box) => box.addEventListener("change", () => {
    document.querySelectorAll(`input[name="${box.dataset.all}"]`).forEach((each) => { each.checked = box.checked; });
  }));
})();
