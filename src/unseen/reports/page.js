(function () {
  var root = document.documentElement;
  function stored(value) {
    try { if (value) localStorage.setItem("unseen-theme", value); return localStorage.getItem("unseen-theme"); }
    catch (error) { return null; }
  }
  var before = stored();
  if (before) root.dataset.theme = before;
  document.getElementById("theme").addEventListener("click", function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored(root.dataset.theme);
    draw();
  });
  function value(row, column) {
    var cell = row.cells[column];
    return cell.dataset.v === undefined ? null : parseFloat(cell.dataset.v);
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      head.addEventListener("click", function () {
        var rows = Array.prototype.slice.call(table.tBodies[0].rows);
        var numeric = rows.some(function (row) { return value(row, column) !== null; });
        var upward = head.getAttribute("aria-sort") === (numeric ? "descending" : "none") ||
          (!numeric && head.getAttribute("aria-sort") !== "ascending");
        rows.sort(function (a, b) {
          if (!numeric) {
            var order = a.cells[column].textContent.localeCompare(b.cells[column].textContent);
            return upward ? order : -order;
          }
          var x = value(a, column), y = value(b, column);
          if (x === null || y === null) return (x === null) - (y === null);
          return upward ? x - y : y - x;
        });
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", upward ? "ascending" : "descending");
        rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
      });
    });
  });

  // --- charts: the drawing in the page becomes one that can be pointed at and zoomed -------------------------------
  var charts = [];
  function colour(name) {
    var mark = document.createElement("i");
    mark.className = name;
    document.body.appendChild(mark);
    var found = getComputedStyle(mark).getPropertyValue("--own").trim();
    mark.remove();
    return found;
  }
  function faint(value) {
    var canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = value;
    var found = canvas.fillStyle;  // as #rrggbb
    return found.charAt(0) === "#" ? found + "29" : found;
  }
  function picked(group) {
    var off = {};
    group.querySelectorAll(".pick input").forEach(function (box) { if (!box.checked) off[box.value] = true; });
    return off;
  }
  function make(figure) {
    var about = JSON.parse(figure.dataset.chart), place = figure.querySelector(".plot"), read = figure.querySelector(".read");
    var off = picked(figure.closest(".group")), style = getComputedStyle(root), dots = about.kind === "dots";
    var soft = style.getPropertyValue("--soft"), rule = style.getPropertyValue("--rule"), ink = style.getPropertyValue("--ink");
    var series = [{}], data = [about.x], bands = [];
    about.series.forEach(function (one) {
      var own = colour(one.colour), show = !off[one.name], at = series.length, line = !dots || one.level;
      var few = one.y.filter(function (v) { return v !== null; }).length < 3;
      series.push({ label: one.title, stroke: own, show: show, spanGaps: true,
        width: !line ? 0 : one.colour === "others" ? 1.2 : 2,
        dash: one.level ? [4, 4] : one.colour.charAt(0) === "h" ? [7, 3] : undefined,
        points: dots ? { show: !one.level, size: 11, fill: own, width: 0 } : { show: few } });
      data.push(one.y);
      if (one.low) {
        series.push({ width: 0, show: show, points: { show: false } }, { width: 0, show: show, points: { show: false } });
        data.push(one.high, one.low);
        bands.push({ series: [at + 1, at + 2], fill: faint(own) });
      }
      one.at = at;
    });
    function tell(u) {
      var i = u.cursor.idx;
      if (u.cursor.left < 0 || i === null || i === undefined) {
        read.textContent = "Point at the " + (dots ? "dots" : "lines") + "; drag to zoom, double-click to zoom out.";
        return;
      }
      read.textContent = dots ? Number(about.x[i].toPrecision(4)) + " " + about.x_name + ":" : about.x_name + " " + about.x[i];
      about.series.forEach(function (one) {
        if (!u.series[one.at].show || one.y[i] === null) return;
        var word = document.createElement("b");
        word.className = one.colour;
        word.textContent = " " + one.title + " ";
        read.append(word, one.y[i].toFixed(about.digits) + " ");
      });
    }
    // Names beside their dots, from the highest down; what would lie on another name goes below it.
    function name(u) {
      if (!dots) return;
      var ratio = devicePixelRatio || 1, pen = u.ctx, taken = [], found = [];
      var left = u.bbox.left, right = left + u.bbox.width, top = u.bbox.top, bottom = top + u.bbox.height;
      about.series.forEach(function (one) {
        if (!u.series[one.at].show || one.colour === "others") return;
        var i = one.level ? 0 : one.y.findIndex(function (v) { return v !== null; });
        var x = one.level ? left : u.valToPos(about.x[i], "x", true), y = u.valToPos(one.y[i], "y", true);
        if (x < left - 1 || x > right + 1 || y < top - 1 || y > bottom + 1) return;
        found.push({ x: x, y: one.level ? y - 9 * ratio : y, title: one.title });
      });
      found.sort(function (a, b) { return a.y - b.y; });
      pen.save();
      pen.font = 12 * ratio + "px system-ui, sans-serif";
      pen.fillStyle = ink;
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      found.forEach(function (one) { taken.push({ start: one.x - 6 * ratio, end: one.x + 6 * ratio, y: one.y }); });
      found.forEach(function (one) {
        var wide = pen.measureText(one.title).width, gap = 9 * ratio;
        var start = one.x + gap + wide > right ? one.x - gap - wide : one.x + gap, y = one.y;
        while (taken.some(function (t) { return Math.abs(t.y - y) < 13 * ratio && start < t.end && t.start < start + wide; })) y += 13 * ratio;
        taken.push({ start: start, end: start + wide, y: y });
        pen.fillText(one.title, start, y);
      });
      pen.restore();
    }
    place.textContent = "";
    var axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui, sans-serif" };
    var below = Object.assign({ label: about.x_name, labelFont: "12px system-ui, sans-serif", labelSize: 20, size: 32 }, axis);
    var scales = { x: { time: false }, y: {} };
    if (!dots) below.incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
    else {
      if (about.log) { scales.x.distr = 3; below.grid = { show: false }; }
      // These ranges are asked for when nothing is zoomed: a zoom sets its own.
      scales.x.range = function (u, low, high) { return about.log ? [low / 1.5, high * 3] : [low, high * 1.06]; };
      scales.y.range = function (u, low, high) { var pad = 0.1 * (high - low) || 1; return [low - pad, high + pad]; };
    }
    var chart = new uPlot({
      width: place.clientWidth || 340, height: 270, series: series, bands: bands, legend: { show: false },
      scales: scales, axes: [below, Object.assign({ size: 46 }, axis)],
      cursor: { drag: { x: true, y: dots, uni: dots ? 20 : null } }, hooks: { setCursor: [tell], draw: [name] }
    }, data, place);
    tell(chart);
    place.tabIndex = 0;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", about.y_name + "; arrow keys read the values, Escape zooms out");
    place.onkeydown = function (event) {
      var step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") chart.setData(data);  // and with it the ranges of the whole
      if (!step) return;
      var i = chart.cursor.left < 0 ? (step > 0 ? (dots && !about.log ? 1 : 0) : about.x.length - 1) : chart.cursor.idx + step;
      i = Math.max(0, Math.min(about.x.length - 1, i));
      chart.setCursor({ left: chart.valToPos(about.x[i], "x"), top: 20 });
      event.preventDefault();
    };
    figure.chart = chart;
    charts.push({ figure: figure, chart: chart, about: about });
  }
  function draw() {
    charts.forEach(function (one) { one.chart.destroy(); });
    charts = [];
    document.querySelectorAll("figure.chart").forEach(make);
  }
  draw();
  addEventListener("resize", function () {
    charts.forEach(function (one) { one.chart.setSize({ width: one.figure.querySelector(".plot").clientWidth, height: 270 }); });
  });
  function choose(group) {
    var off = picked(group);
    charts.forEach(function (one) {
      if (!group.contains(one.figure)) return;
      one.about.series.forEach(function (own) {
        for (var k = 0; k < (own.low ? 3 : 1); k++) one.chart.setSeries(own.at + k, { show: !off[own.name] });
      });
    });
  }
  document.querySelectorAll(".pick").forEach(function (field) {
    var group = field.closest(".group");
    field.addEventListener("change", function () { choose(group); });
    field.querySelectorAll("button").forEach(function (button) {
      button.addEventListener("click", function () {
        field.querySelectorAll("input").forEach(function (box) { box.checked = button.dataset.all === "1"; });
        choose(group);
      });
    });
  });
  // --- which images flip between two methods ------------------------------------------------------------------------
  document.querySelectorAll(".flips").forEach(function (place) {
    var about = JSON.parse(place.dataset.flips), choices = place.querySelectorAll("select");
    var tiles = Array.prototype.slice.call(place.querySelectorAll(".tile"));
    var lists = place.querySelectorAll(".tiles"), heads = place.querySelectorAll("h5");
    function show() {
      var a = about.said[choices[0].value], b = about.said[choices[1].value], counts = [0, 0];
      tiles.forEach(function (tile, i) {
        var right = about.label[i], first = a[i] === right, second = b[i] === right;
        tile.hidden = first === second;
        if (first === second) return;
        var side = first ? 0 : 1;
        counts[side] += 1;
        tile.querySelector("figcaption").textContent = about.classes[right] + ", not " + about.classes[first ? b[i] : a[i]];
        lists[side].appendChild(tile);
      });
      [0, 1].forEach(function (side) {
        var winner = choices[side].selectedOptions[0].textContent, loser = choices[1 - side].selectedOptions[0].textContent;
        heads[side].textContent = "Right by " + winner + ", wrong by " + loser + ": " + counts[side] + " of " + tiles.length;
      });
    }
    choices.forEach(function (choice) { choice.addEventListener("change", show); });
    show();
  });
})();
