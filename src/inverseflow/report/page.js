"use strict";
// The viewer. All state is in `state`; a change calls choose() (another picture), paint() (other contrast) or draw().
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const stage = get("stage"), canvas = get("canvas"), divider = get("divider"), context = canvas.getContext("2d");
  const state = { mode: "compare", view: 0, split: 0.5, scale: 1, x: 0, y: 0, fitted: true, map: "grey", gamma: 1 };
  const manual = new Map(); // channel -> [min, max] that the user set; channels without an entry are on auto
  let shown = null; // the decoded plane: {before, after, width, height, plane, layers}
  let request = 0;

  // ---- numbers

  function format(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    const text = size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
    return text.replace("-", "−");
  }

  // ---- which plane

  function planeNumber() {
    let number = 0;
    for (const { axis, indices } of data.axes) {
      const slider = document.querySelector(`.axis[data-axis="${axis}"]`);
      number = number * indices.length + (slider ? Number(slider.value) : 0);
    }
    return number * data.channels.length + channel();
  }

  function channel() {
    return get("channel") ? Number(get("channel").value) : 0;
  }

  function planeName() {
    const parts = data.channels.length > 1 ? [data.channels[channel()]] : [];
    for (const slider of all(".axis")) {
      const { axis, indices } = data.axes.find((one) => one.axis === slider.dataset.axis);
      parts.push(`${axis} ${indices[slider.value] + 1}`);
    }
    return parts.join(", ");
  }

  // The grey levels of a PNG, decoded once.
  const decoded = new Map();
  async function levels(picture) {
    if (!decoded.has(picture)) {
      const image = new Image();
      image.src = picture.src;
      await image.decode();
      const surface = document.createElement("canvas");
      surface.width = image.naturalWidth;
      surface.height = image.naturalHeight;
      const pen = surface.getContext("2d", { willReadFrequently: true });
      pen.drawImage(image, 0, 0);
      const colours = pen.getImageData(0, 0, surface.width, surface.height).data;
      const grey = new Uint8Array(surface.width * surface.height);
      for (let i = 0; i < grey.length; i++) grey[i] = colours[4 * i];
      const values = Float32Array.from({ length: 256 }, (_, g) => picture.low + (g * (picture.high - picture.low)) / 255);
      decoded.set(picture, { grey, values, width: surface.width, height: surface.height });
    }
    return decoded.get(picture);
  }

  async function choose() {
    const mine = ++request;
    const number = planeNumber();
    const plane = data.planes[number];
    const [before, after] = await Promise.all(plane.views[state.view].map(levels));
    if (mine !== request) return; // the user has moved on
    const resized = !shown || shown.view !== state.view || shown.width !== before.width || shown.height !== before.height;
    shown = { before, after, plane, view: state.view, width: before.width, height: before.height, layers: {} };
    for (const part of all("[data-plane]")) part.hidden = Number(part.dataset.plane) !== number;
    for (const slider of all(".axis")) {
      const { size, indices } = data.axes.find((one) => one.axis === slider.dataset.axis);
      slider.parentElement.querySelector("output").textContent = `${indices[slider.value] + 1} / ${size}`;
      slider.setAttribute("aria-valuetext", `${indices[slider.value] + 1} of ${size}`);
    }
    if (resized) shape();
    syncContrast();
    residual();
    paint();
    stage.dataset.shown = `${number}/${state.view}`;
  }

  // ---- contrast and colour

  function limits() {
    return manual.get(channel()) || [shown.plane.low, shown.plane.high];
  }

  function syncContrast() {
    const pictures = shown.plane.views[state.view];
    const low = Math.min(shown.plane.low, ...pictures.map((one) => one.low));
    const high = Math.max(shown.plane.high, ...pictures.map((one) => one.high));
    const now = limits();
    ["min", "max"].forEach((id, i) => {
      const slider = get(id);
      slider.min = Math.min(low, now[i]);
      slider.max = Math.max(high, now[i]);
      slider.value = now[i];
      slider.parentElement.querySelector("output").textContent = format(now[i]);
    });
    get("auto").setAttribute("aria-pressed", String(!manual.has(channel())));
  }

  // Colour maps as a few stops, linear between them.
  const MAPS = {
    grey: ["000000", "ffffff"],
    inverted: ["ffffff", "000000"],
    viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
    fire: ["000000", "3b0f70", "8c2981", "de4968", "fe9f6d", "fcfdbf"],
  };
  function colour(name, share) {
    const stops = MAPS[name], place = share * (stops.length - 1), first = Math.min(Math.floor(place), stops.length - 2);
    const mix = [0, 2, 4].map((at) => {
      const [a, b] = [stops[first], stops[first + 1]].map((stop) => parseInt(stop.slice(at, at + 2), 16));
      return Math.round(a + (b - a) * (place - first));
    });
    return 0xff000000 | (mix[2] << 16) | (mix[1] << 8) | mix[0]; // the bytes of RGBA on a little-endian machine
  }

  function layer(width, height, fill) {
    const surface = document.createElement("canvas");
    surface.width = width;
    surface.height = height;
    const pen = surface.getContext("2d"), image = pen.createImageData(width, height);
    fill(new Uint32Array(image.data.buffer));
    pen.putImageData(image, 0, 0);
    return surface;
  }

  function paint() {
    const [low, high] = limits();
    for (const side of ["before", "after"]) {
      const { grey, values } = shown[side];
      const table = Uint32Array.from(values, (value) =>
        colour(state.map, clamp((value - low) / Math.max(high - low, 1e-30), 0, 1) ** state.gamma));
      shown.layers[side] = layer(shown.width, shown.height, (pixels) => {
        for (let i = 0; i < pixels.length; i++) pixels[i] = table[grey[i]];
      });
    }
    draw();
  }

  // Before minus after, mid-grey at zero, three standard deviations of the picture to either side.
  function residual() {
    const { before, after, width, height } = shown;
    const difference = new Float32Array(before.grey.length);
    let sum = 0, squares = 0;
    for (let i = 0; i < difference.length; i++) {
      const value = before.values[before.grey[i]] - after.values[after.grey[i]];
      difference[i] = value;
      sum += value;
      squares += value * value;
    }
    const mean = sum / difference.length;
    const reach = 3 * Math.sqrt(Math.max(squares / difference.length - mean * mean, 0)) || 1;
    const greys = Uint32Array.from({ length: 256 }, (_, g) => colour("grey", g / 255));
    shown.layers.residual = layer(width, height, (pixels) => {
      for (let i = 0; i < pixels.length; i++) pixels[i] = greys[clamp(Math.round(127.5 + (127.5 * difference[i]) / reach), 0, 255)];
    });
    const target = get("difference"), name = planeName();
    target.width = width;
    target.height = height;
    target.getContext("2d").drawImage(shown.layers.residual, 0, 0);
    get("difference-caption").textContent = `${name ? name + ", as above. " : ""}Black is −${format(reach)}, white +${format(reach)}.`;
  }

  // ---- the stage: `x`, `y` is the point of the picture in the middle, `scale` CSS pixels per picture pixel

  // Pixels of the data along one pixel of the picture.
  function reduction() {
    return state.view === 0 ? data.factor : 1;
  }

  function fitScale() {
    return Math.min(stage.clientWidth / shown.width, stage.clientHeight / shown.height);
  }

  function shape() {
    const ratio = clamp(shown.height / shown.width, 0.45, 1.25);
    // leaves room in the window for what is above and below
    const height = Math.round(clamp(stage.clientWidth * ratio, 200, Math.max(320, innerHeight - 220)));
    stage.style.aspectRatio = `${stage.clientWidth} / ${height}`; // kept on paper, where the width is another
    fit();
  }

  function fit() {
    state.scale = fitScale();
    state.x = shown.width / 2;
    state.y = shown.height / 2;
    state.fitted = true;
    draw();
  }

  // Zoom so that the point of the picture under (px, py) stays there.
  function zoom(scale, px = stage.clientWidth / 2, py = stage.clientHeight / 2) {
    const least = Math.min(fitScale(), 1), next = clamp(scale, least, Math.max(40, fitScale() * 4));
    const dx = px - stage.clientWidth / 2, dy = py - stage.clientHeight / 2;
    state.x += dx / state.scale - dx / next;
    state.y += dy / state.scale - dy / next;
    state.scale = next;
    state.fitted = Math.abs(next / fitScale() - 1) < 1e-3;
    draw();
  }

  function pan(dx, dy) {
    state.x -= dx / state.scale;
    state.y -= dy / state.scale;
    draw();
  }

  let waiting = false;
  function draw() {
    if (waiting || !shown) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      render();
    });
  }

  function render() {
    const width = stage.clientWidth, height = stage.clientHeight, dense = window.devicePixelRatio || 1;
    const halfWide = width / 2 / state.scale, halfHigh = height / 2 / state.scale;
    state.x = halfWide * 2 >= shown.width ? shown.width / 2 : clamp(state.x, halfWide, shown.width - halfWide);
    state.y = halfHigh * 2 >= shown.height ? shown.height / 2 : clamp(state.y, halfHigh, shown.height - halfHigh);
    if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
    }
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = state.scale * dense < 1; // pixels stay square when zoomed in
    context.imageSmoothingQuality = "high";
    const comparing = state.mode === "compare", cut = Math.round(state.split * width * dense) / dense;
    if (comparing) {
      part("before", 0, cut);
      part("after", cut, width);
    } else part(state.mode, 0, width);
    if (state.view === 0 && data.factor > 1) outline();
    overlay(comparing, width);
  }

  function part(name, from, to) {
    context.save();
    context.beginPath();
    context.rect(from, 0, to - from, stage.clientHeight);
    context.clip();
    context.drawImage(shown.layers[name], ...place(0, 0), shown.width * state.scale, shown.height * state.scale);
    context.restore();
  }

  // A point of the picture on the stage.
  function place(x, y) {
    return [stage.clientWidth / 2 + (x - state.x) * state.scale, stage.clientHeight / 2 + (y - state.y) * state.scale];
  }

  // Where the detail lies in the overview.
  function outline() {
    const [top, left] = data.corner, [high, wide] = data.detail, k = data.factor;
    const [x, y] = place(left / k, top / k);
    context.lineWidth = 1.5;
    context.strokeStyle = "#ffd257";
    context.strokeRect(x, y, (wide / k) * state.scale, (high / k) * state.scale);
  }

  function overlay(comparing, width) {
    stage.dataset.mode = state.mode;
    stage.classList.toggle("zoomed", !state.fitted && (shown.width * state.scale > width + 1 || shown.height * state.scale > stage.clientHeight + 1));
    const [left, right] = all(".side"), percent = Math.round(state.split * 100);
    divider.hidden = !comparing;
    divider.style.left = `${state.split * 100}%`;
    divider.setAttribute("aria-valuenow", String(percent));
    divider.setAttribute("aria-valuetext", `${percent} percent before`);
    left.hidden = comparing && state.split * width < 84; // too narrow for the label
    right.hidden = !comparing || (1 - state.split) * width < 76;
    left.textContent = comparing ? "before" : state.mode;
    get("scale").textContent = `${format(Math.round((state.scale / reduction()) * 100))} %`;
    scaleBar(width);
  }

  function scaleBar(width) {
    const bar = get("scalebar");
    bar.hidden = data.pixelSize === null;
    if (bar.hidden) return;
    const perPixel = (data.pixelSize * reduction()) / state.scale; // units per CSS pixel
    const most = Math.min(width * 0.24, 180) * perPixel, power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].map((m) => m * power).find((value) => value <= most);
    bar.querySelector("span").textContent = `${format(length)} ${data.unit}`.trim();
    bar.querySelector("i").style.width = `${(100 * length) / perPixel / width}cqw`;
  }

  // ---- pointers: one finger or the mouse moves the divider, or the picture when zoomed; two fingers zoom

  const fingers = new Map();
  let action = "", pinch = 0;

  function local(event) {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function setSplit(value) {
    state.split = clamp(value, 0, 1);
    draw();
  }

  stage.addEventListener("pointerdown", (event) => {
    if (!shown || (event.pointerType === "mouse" && event.button !== 0)) return;
    fingers.set(event.pointerId, local(event));
    if (fingers.size === 2) {
      action = "pinch";
      pinch = 0;
    } else if (event.target.closest("#divider")) action = "split";
    else if (stage.classList.contains("zoomed")) action = "pan";
    else action = state.mode === "compare" ? "split" : "";
    stage.classList.toggle("dragging", action === "pan");
    // A finger on the fitted picture may be scrolling the page: it is captured only where scrolling is off anyway.
    if (event.pointerType === "mouse" || stage.classList.contains("zoomed") || event.target.closest("#divider")) stage.setPointerCapture(event.pointerId);
    if (action === "split" && event.pointerType === "mouse" && !event.target.closest("#divider")) setSplit(local(event)[0] / stage.clientWidth);
  });

  stage.addEventListener("pointermove", (event) => {
    readout(event);
    if (!fingers.has(event.pointerId)) return;
    const [x, y] = local(event), [oldX, oldY] = fingers.get(event.pointerId);
    fingers.set(event.pointerId, [x, y]);
    if (action === "split") setSplit(x / stage.clientWidth);
    else if (action === "pan") pan(x - oldX, y - oldY);
    else if (action === "pinch" && fingers.size === 2) {
      const [a, b] = [...fingers.values()], apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
      pan((x - oldX) / 2, (y - oldY) / 2);
      if (pinch) zoom((state.scale * apart) / pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      pinch = apart;
    }
  });

  for (const name of ["pointerup", "pointercancel"]) {
    stage.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      action = "";
      stage.classList.remove("dragging");
    });
  }
  stage.addEventListener("pointerleave", () => (get("readout").textContent = ""));

  // The values under the mouse, as far as 8 bits tell them.
  function readout(event) {
    if (!shown || event.pointerType !== "mouse") return;
    const [px, py] = local(event), [left, top] = place(0, 0);
    const x = Math.floor((px - left) / state.scale), y = Math.floor((py - top) / state.scale);
    const inside = x >= 0 && y >= 0 && x < shown.width && y < shown.height;
    const at = y * shown.width + x, value = (side) => format(Number(shown[side].values[shown[side].grey[at]].toPrecision(3)));
    const [top0, left0] = state.view === 1 ? data.corner : [0, 0], k = reduction();
    get("readout").textContent = inside ? `x ${x * k + left0}, y ${y * k + top0}: before ${value("before")}, after ${value("after")}` : "";
  }

  // The wheel zooms, but a page that is being scrolled past the picture keeps scrolling.
  let scrolled = 0;
  addEventListener("scroll", () => (scrolled = performance.now()), { passive: true });
  stage.addEventListener("wheel", (event) => {
    const leaving = event.deltaY > 0 && state.scale <= Math.min(fitScale(), 1) * 1.001;
    if (!shown || ((leaving || performance.now() - scrolled < 250) && !event.ctrlKey)) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 20 : 1;
    zoom(state.scale * Math.exp(-clamp(event.deltaY * lines, -200, 200) * (event.ctrlKey ? 0.01 : 0.002)), ...local(event));
  }, { passive: false });

  divider.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 0.1 : 0.01;
    const moves = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    setSplit(state.split + moves[event.key]);
  });
  stage.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => zoom(state.scale * 1.5), "=": () => zoom(state.scale * 1.5), "-": () => zoom(state.scale / 1.5), 0: fit,
      ArrowLeft: () => pan(40, 0), ArrowRight: () => pan(-40, 0), ArrowUp: () => pan(0, 40), ArrowDown: () => pan(0, -40),
    };
    const arrow = event.key.startsWith("Arrow");
    if (!shown || event.ctrlKey || event.metaKey || !(event.key in keys) || (arrow && !stage.classList.contains("zoomed"))) return;
    event.preventDefault();
    keys[event.key]();
  });

  // ---- controls

  get("in").addEventListener("click", () => shown && zoom(state.scale * 1.5));
  get("out").addEventListener("click", () => shown && zoom(state.scale / 1.5));
  get("fit").addEventListener("click", () => shown && fit());
  get("one").addEventListener("click", () => shown && zoom(reduction()));
  for (const input of all('input[name="mode"]')) input.addEventListener("change", () => {
    state.mode = input.value;
    get("contrast").disabled = state.mode === "residual"; // which has its own grey scale
    draw();
  });
  for (const input of all('input[name="view"]')) input.addEventListener("change", () => { state.view = Number(input.value); choose(); });
  for (const slider of all(".axis")) slider.addEventListener("input", choose);
  if (get("channel")) get("channel").addEventListener("change", choose);
  get("map").addEventListener("change", () => { state.map = get("map").value; paint(); });
  get("gamma").addEventListener("input", () => {
    state.gamma = Number(get("gamma").value);
    get("gamma").parentElement.querySelector("output").textContent = format(state.gamma);
    paint();
  });
  for (const id of ["min", "max"]) {
    get(id).addEventListener("input", () => {
      const [low, high] = limits(), value = Number(get(id).value);
      manual.set(channel(), id === "min" ? [Math.min(value, high), high] : [low, Math.max(value, low)]);
      syncContrast();
      paint();
    });
  }
  get("auto").addEventListener("click", () => { manual.delete(channel()); syncContrast(); paint(); });
  document.querySelector(".panel").addEventListener("submit", (event) => event.preventDefault());

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code); // no clipboard for this page: the text is selected for Ctrl+C
        button.textContent = "Selected";
        return;
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1600);
    });
  }

  let lastWidth = 0;
  new ResizeObserver(() => {
    if (!shown || stage.clientWidth === lastWidth) return;
    lastWidth = stage.clientWidth;
    if (state.fitted) shape();
    else draw();
  }).observe(stage);

  choose();
})();
