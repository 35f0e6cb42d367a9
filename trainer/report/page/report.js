"use strict";
// Shows the values under the pointer, hides runs and sorts the tables of results. The page is complete without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();

  const format = (value, percent) => {
    if (percent) return Number((100 * value).toPrecision(3)) + "%";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
    return Number(value.toPrecision(4)).toLocaleString("en-US", {maximumFractionDigits: 6});
  };

  // The last index whose step is nearest to `step`.
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return step - steps[low] < steps[high] - step ? low : high;
  };

  const svgElement = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return element;
  };
  const element = (name, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const attach = (chart) => {
    const plot = document.querySelector("#" + chart.id + " .plot");
    const svg = plot.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const [left, right, top, bottom] = chart.plot;
    const [firstStep, lastStep] = chart.steps;
    const [low, high] = chart.values;
    const x = (step) => left + (right - left) * (step - firstStep) / (lastStep - firstStep);
    const y = (value) => bottom - (bottom - top) * (chart.log
        ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))
        : (value / 2 - low / 2) / (high / 2 - low / 2));
    const tip = element("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    plot.append(tip);
    let shownStep = null;

    const hide = () => {
      tip.hidden = true;
      cursor.replaceChildren();
      shownStep = null;
    };
    const visible = () => chart.lines.filter((line) => !hidden.has(line.run));

    const show = (wantedStep) => {
      const lines = visible();
      if (lines.length === 0) return hide();
      // The recorded step that is nearest among all lines.
      let step = null;
      for (const line of lines) {
        const candidate = line.x[nearest(line.x, wantedStep)];
        if (step === null || Math.abs(candidate - wantedStep) < Math.abs(step - wantedStep)) step = candidate;
      }
      shownStep = step;
      cursor.replaceChildren(svgElement("line", {x1: x(step), x2: x(step), y1: top, y2: bottom}));
      tip.replaceChildren(element("strong", "step " + step.toLocaleString("en-US")));
      for (const line of lines) {
        const i = nearest(line.x, step);
        const value = line.y[i];
        const row = element("div");
        const names = [data.runs.length > 1 ? data.runs[line.run] : "", line.label || ""].filter(Boolean);
        // Another run's nearest step is named when it is not this one.
        if (line.x[i] !== step) names.push("(step " + line.x[i].toLocaleString("en-US") + ")");
        const name = element("span", names.join(" "));
        name.className = "r" + line.run % data.colors;
        if (data.runs.length > 1) name.prepend(element("i"));
        if (names.length > 0) row.append(name);
        let text = value === null ? "no value" : format(value, chart.percent);
        if (value !== null && line.low && line.low[i] !== null && line.high[i] !== null) {
          text += " (" + format(line.low[i], chart.percent) + "\u2013" + format(line.high[i], chart.percent) + ")";
        }
        row.append(element("span", text));
        tip.append(row);
        if (value !== null && (!chart.log || value > 0)) {
          const dot = svgElement("circle", {cx: x(line.x[i]), cy: y(value), r: 3.5});
          dot.setAttribute("class", "r" + line.run % data.colors);
          cursor.append(dot);
        }
      }
      tip.hidden = false;
      const scale = svg.clientWidth / svg.viewBox.baseVal.width;
      // Beside the cursor, on the side with more room, and never outside of the chart.
      const at = x(step) * scale;
      tip.style.left = "0";
      const wanted = at < svg.clientWidth / 2 ? at + 12 : at - 12 - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(wanted, svg.clientWidth - tip.offsetWidth)) + "px";
    };

    const showAt = (event) => {
      const box = svg.getBoundingClientRect();
      const position = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      show(firstStep + (position - left) / (right - left) * (lastStep - firstStep));
    };
    plot.addEventListener("pointermove", showAt);
    plot.addEventListener("pointerdown", showAt);
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const steps = [...new Set(visible().flatMap((line) => line.x))].sort((a, b) => a - b);
      if (steps.length === 0) return;
      let i = shownStep === null ? -1 : steps.indexOf(shownStep);
      if (event.key === "Home" || (event.key === "ArrowRight" && i < 0)) i = 0;
      else if (event.key === "End" || (event.key === "ArrowLeft" && i < 0)) i = steps.length - 1;
      else i = Math.min(Math.max(i + (event.key === "ArrowRight" ? 1 : -1), 0), steps.length - 1);
      show(steps[i]);
    });
    return hide;
  };

  const hideAll = data.charts.map(attach);
  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const run = Number(button.dataset.toggle);
      const show = hidden.has(run);
      if (show) hidden.delete(run); else hidden.add(run);
      button.setAttribute("aria-pressed", String(show));
      for (const part of document.querySelectorAll('[data-run="' + run + '"]')) part.classList.toggle("hidden", !show);
      for (const hide of hideAll) hide();
    });
  }

  // Sorts the tables of results by one of their columns or of the metrics, which becomes their last column.
  const tables = [...document.querySelectorAll('section[aria-labelledby="results"] table')].map((table, i) =>
      ({body: table.tBodies[0], head: table.tHead.rows[0], rows: [...table.tBodies[0].rows], values: i ? "runs" : "lines"}));

  const showMetric = (name) => {
    for (const table of tables) {
      for (const row of [table.head, ...table.rows]) row.querySelector(".metric")?.remove();
      if (!name) continue;
      const head = element("th", name);
      head.className = "metric";
      table.head.append(head);
      data.metrics[name][table.values].forEach((value, i) => {
        const [mean, low, high] = [value].flat();
        const cell = element("td", mean === null ? "\u2013" : format(mean));
        cell.className = "metric";
        cell.dataset.label = name;
        if (mean !== null) cell.dataset.value = mean;
        if (low < high) cell.append(" ", element("small", format(low) + "\u2013" + format(high)));
        table.rows[i].append(cell);
      });
    }
  };

  const sortBy = (title, sign) => {
    for (const table of tables) {
      const heads = [...table.head.cells];
      const column = heads.findIndex((head) => head.textContent === title);
      heads.forEach((head, i) => {
        head.removeAttribute("aria-sort");
        if (i === column) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      });
      const key = (row) => {
        const cell = row.cells[column];
        if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
        return /^\u2013?$/.test(cell.textContent) ? null : cell.textContent;
      };
      // Rows without a value come last in both directions.
      const order = (a, b) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a + typeof b === "numbernumber" ? a - b : String(a).localeCompare(String(b)));
      };
      const rows = [...table.rows];
      if (column >= 0) rows.sort((a, b) => order(key(a), key(b)));
      table.body.append(...rows);
    }
  };

  if (Object.keys(data.metrics).length > 0) {
    const titles = [...tables[0].head.cells].map((head) => head.textContent);
    const select = element("select");
    const direction = element("button");
    let sign = -1;
    const group = (label, names) => {
      const options = element("optgroup");
      options.label = label;
      options.append(...names.map((name) => element("option", name)));
      return options;
    };
    const update = () => {
      direction.textContent = sign > 0 ? "\u2191 lowest first" : "\u2193 highest first";
      direction.hidden = select.selectedIndex === 0;
      showMetric(data.metrics[select.value] ? select.value : "");
      sortBy(select.value, sign);
    };
    select.append(element("option", "as given"), group("Columns", titles), group("Metrics, last values", Object.keys(data.metrics)));
    select.addEventListener("change", update);
    direction.type = "button";
    direction.addEventListener("click", () => { sign = -sign; update(); });
    const bar = element("p");
    const label = element("label", "Sort by ");
    bar.className = "sort";
    label.append(select);
    bar.append(label, direction);
    tables[0].body.parentElement.before(bar);
    for (const table of tables) {
      for (const head of table.head.cells) {
        const title = head.textContent;
        const button = element("button");
        button.type = "button";
        button.append(...head.childNodes);
        button.addEventListener("click", () => {
          if (titles.includes(title)) {
            sign = select.value === title ? -sign : -1;
            select.value = title;
            update();
          }
        });
        head.append(button);
      }
    }
    update();
  }
})();
