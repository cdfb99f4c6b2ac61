"use strict";
// Draws every element with data-chart from the JSON that it names (webhost/charts.py). The table below it says the same.
(() => {
  const colours = ["--accent", "--high", "--wrong", "--good", "--soft"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const HEIGHT = 200;

  // Two digits that mean something; an axis has no room for more.
  const brief = (n) => Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n);
  const full = (n, unit) => (n === null || n === undefined ? "–" : `${n.toLocaleString("en")}${unit ? ` ${unit}` : ""}`);
  const utc = (seconds, bucket) => new Date(seconds * 1000).toLocaleString("en-GB", {
    timeZone: "UTC", day: "numeric", month: "short", ...(bucket === "day" ? {} : { hour: "2-digit", minute: "2-digit" }),
  });

  // A point between two gaps is no line, and would not be seen.
  const alone = (plot, series) => plot.data[series].flatMap((value, n, all) => (
    value !== null && (all[n - 1] ?? null) === null && (all[n + 1] ?? null) === null ? [n] : []));

  function draw(element) {
    const data = JSON.parse(document.getElementById(element.dataset.chart).textContent);
    const bars = data.kind === "bars" && window.uPlot.paths.bars({ size: [0.7, 40] });
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const series = data.series.map(({ label }, n) => {
      const colour = css(colours[n % colours.length]);
      return {
        label, stroke: colour, width: bars ? 0 : 2, spanGaps: false, points: { show: !bars, filter: alone },
        ...(bars ? { paths: bars, fill: colour } : {}), value: (_, n) => full(n, data.unit),
      };
    });
    const plot = new window.uPlot({
      width: element.clientWidth, height: HEIGHT, tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), "UTC"),
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      series: [{ value: (_, at) => (at === null ? "" : utc(at, data.bucket)), label: "UTC" }, ...series],
      axes: [
        { ...axis, values: (_, at) => at.map((second) => utc(second, data.bucket)), space: data.bucket === "day" ? 60 : 95 },
        { ...axis, size: 55, values: (_, numbers) => numbers.map(brief) },
      ],
      cursor: { drag: { x: false, y: false } },
    }, [data.times, ...data.series.map((one) => one.values)], element);
    new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
    return plot;
  }

  const drawn = new Map();
  function drawAll() {
    for (const [element, plot] of drawn) if (!element.isConnected) { plot.destroy(); drawn.delete(element); }
    for (const element of document.querySelectorAll("[data-chart]")) if (!drawn.has(element)) drawn.set(element, draw(element));
  }
  drawAll();
  document.body.addEventListener("htmx:afterSettle", drawAll);
  // Colours are read when a chart is drawn.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of drawn.values()) plot.destroy();
    drawn.clear();
    drawAll();
  });
})();
