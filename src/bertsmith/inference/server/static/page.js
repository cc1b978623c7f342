"use strict";
// Everything that is shown goes into text nodes, so that no text of a user or a model becomes markup.

const LONG = "long";
const OPTIONAL = "may be empty";
const KINDS = {
  classify: { title: "classes", columns: texts, show: showClasses },
  regress: { title: "a number", columns: texts, show: (found) => [large(found.number.toFixed(4))] },
  score: { title: "a score", columns: texts, show: (found) => [large(found.score.toFixed(4))] },
  tag: { title: "entities", columns: (model) => [[model.columns[0], "Text", LONG, ""]], show: showEntities },
  qa: {
    title: "questions",
    columns: (model) => [[model.columns[0], "Question", "", ""], [model.columns[1], "Context", LONG, ""]],
    show: showAnswer,
  },
  choice: { title: "a choice", columns: (model) => [...texts(model, ""), ...choiceFields(model)], show: showChoice },
  "masked words": {
    title: "masked words",
    columns: (model) => [[model.columns[0], "Text", "", "[MASK] in place of a word"]],
    show: showMasks,
  },
  embed: {
    title: "similarity",
    columns: () => [["source", "Text", "", ""], ["other", "Other texts", LONG, "one a line"]],
    show: showSimilarity,
  },
};

let token = "";
let models = [];
let chosen = 0;
const kept = new Map(); // what was typed, by model and column

function element(id) {
  return document.getElementById(id);
}

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function ask(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (answer.status === 401) {
    element("token-form").hidden = false;
    element("token").focus();
  }
  if (!answer.ok) throw new Error(found.error);
  const [truncated, empty] = ["X-Truncated-Tokens-Total", "X-Empty-Rows-Total"].map((name) => answer.headers.get(name));
  return { found, truncated, empty };
}

async function start() {
  let state = "";
  try {
    const { found } = await ask("/info");
    state = found.state;
    models = found.models.filter((model) => model.kind in KINDS);
  } catch (error) {
    element("about").textContent = error.message;
    return;
  }
  element("token-form").hidden = true;
  if (state === "loading") {
    element("about").textContent = "The models are being loaded; this page looks again in a second.";
    setTimeout(start, 1000);
    return;
  }
  if (!models.length) {
    element("about").textContent = "This server has no model that can be tried here.";
    return;
  }
  element("about").textContent = "Models of this server, to try by hand.";
  element("tabs").replaceChildren(...models.map(tab));
  element("panel").hidden = false;
  choose(0);
}

function tab(model, place) {
  const made = make("button", { type: "button", role: "tab", id: `tab-${place}`, "aria-controls": "panel" });
  made.append(model.model_id, make("small", {}, KINDS[model.kind].title));
  made.addEventListener("click", () => choose(place));
  made.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: models.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose((steps[event.key] + models.length) % models.length);
    element(`tab-${chosen}`).focus();
  });
  return made;
}

function choose(place) {
  chosen = place;
  models.forEach((_, other) => {
    element(`tab-${other}`).setAttribute("aria-selected", String(other === place));
    element(`tab-${other}`).tabIndex = other === place ? 0 : -1;
  });
  element("panel").setAttribute("aria-labelledby", `tab-${place}`);
  const model = models[place];
  const fields = KINDS[model.kind].columns(model).flatMap(([name, label, size, hint]) => field(model, name, label, size, hint));
  element("form").replaceChildren(...fields, make("button", {}, "Ask"));
  element("result").replaceChildren();
  tell("");
}

function field(model, name, label, size, hint) {
  const id = `field-${name}`;
  const input = make("textarea", { id, name, class: size, rows: size === LONG ? 6 : 2 });
  input.required = hint !== OPTIONAL;
  input.value = kept.get(`${model.model_id}/${name}`) ?? "";
  input.addEventListener("input", () => kept.set(`${model.model_id}/${name}`, input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element("form").requestSubmit();
  });
  return [make("label", { for: id }, `${label} `, make("small", {}, hint)), input];
}

// One text, or two. A folder that does not say which (pairs is null) answers to both.
function texts(model, alone = LONG) {
  const first = [model.columns[0], "Text", model.pairs === false ? alone : "", ""];
  if (model.pairs === false) return [first];
  return [first, [model.pairs ? model.columns[1] : "text_b", "Second text", "", model.pairs ? "" : OPTIONAL]];
}

// Behind the texts stands the column that lists the choices, or one for each.
function choiceColumns(model) {
  return model.columns.slice(model.pairs ? 2 : 1);
}

function choiceFields(model) {
  const names = choiceColumns(model);
  if (names.length === 1) return [[names[0], "Choices", LONG, "one a line"]];
  return names.map((name, place) => [name, `Choice ${place + 1}`, "", name]);
}

function choicesOf(model, values) {
  const names = choiceColumns(model);
  return names.length === 1 ? lines(values[names[0]]) : names.map((name) => values[name]);
}

function tell(message, wrong = false) {
  element("status").textContent = message;
  element("status").className = wrong ? "wrong" : "";
}

function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

async function submit(event) {
  event.preventDefault();
  const model = models[chosen];
  const values = Object.fromEntries(new FormData(element("form")));
  const button = element("form").querySelector("button");
  button.disabled = true;
  tell("Asked ...");
  try {
    const began = performance.now();
    const { found, truncated, empty } = await answer(model, values);
    if (models[chosen] !== model) return;
    element("result").replaceChildren(...KINDS[model.kind].show(found, values, model));
    const lost = Number(truncated ?? 0);
    const cut = lost ? `; ${lost} tokens were cut, because the model reads ${model.max_input_length}` : "";
    const unknown = empty ? "; a text holds nothing that the model knows, so the answer says nothing of it" : "";
    tell(`Answered in ${Math.round(performance.now() - began)} ms${cut}${unknown}.`);
  } catch (error) {
    element("result").replaceChildren();
    tell(error.message, true);
  } finally {
    button.disabled = false;
  }
}

async function answer(model, values) {
  const path = `/models/${encodeURIComponent(model.model_id)}`;
  if (model.kind === "embed") {
    const inputs = { source_sentence: values.source, sentences: lines(values.other) };
    return ask(`${path}/similarity`, { inputs, parameters: { truncate: true } });
  }
  const names = model.kind === "choice" ? choiceColumns(model) : [];
  const row = names.length === 1 ? { ...values, [names[0]]: choicesOf(model, values) } : values;
  const asked = await ask(`${path}/answers`, { rows: [row], truncate: true });
  return { ...asked, found: asked.found.answers[0] };
}

function bars(entries, form = percent) {
  const rows = entries.flatMap(([name, share]) => [
    make("span", { class: "name" }, name),
    make("meter", { min: 0, max: 1, value: Math.max(0, share), "aria-label": name }),
    make("span", { class: "number" }, form(share)),
  ]);
  return make("div", { class: "bars" }, ...rows);
}

function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

function showClasses(found) {
  const given = found.labels ?? [found.label];
  const ordered = Object.entries(found.scores).sort((one, other) => other[1] - one[1]);
  return [large(given.join(", ") || "no label"), bars(ordered)];
}

function large(words) {
  return make("p", { class: "large" }, words);
}

function showChoice(found, values, model) {
  const choices = choicesOf(model, values);
  return [large(found.choice), bars(found.scores.map((score, place) => [choices[place], score]))];
}

// Places are counted in characters of Unicode, which JavaScript's own indices are not.
function pieces(text, spans, mark) {
  const letters = [...text];
  const parts = [];
  let end = 0;
  for (const span of spans) {
    parts.push(letters.slice(end, span.start).join(""), mark(letters.slice(span.start, span.end).join(""), span));
    end = span.end;
  }
  return make("p", { class: "text" }, ...parts, letters.slice(end).join(""));
}

function showEntities(found, values, model) {
  const text = values[model.columns[0]];
  const kinds = [...new Set(found.entities.map((entity) => entity.label))].sort();
  const marked = pieces(text, found.entities, (words, entity) =>
    make(
      "span",
      { class: `entity kind-${kinds.indexOf(entity.label) % 6}` },
      words,
      make("small", {}, `${entity.label} ${Math.round(100 * entity.score)}%`),
    ),
  );
  return [marked, make("p", {}, found.entities.length ? "" : "There is no entity in this text.")];
}

function showAnswer(found, values, model) {
  const context = values[model.columns[1]];
  const spans = found.start === null ? [] : [{ start: found.start, end: found.end }];
  const best = found.nbest.map((guess) => [guess.text || "no answer", guess.probability]);
  return [
    large(found.answer || "no answer"),
    pieces(context, spans, (words) => make("mark", {}, words)),
    make("h2", {}, "The best answers"),
    bars(best),
  ];
}

function showMasks(found, values, model) {
  const parts = values[model.columns[0]].split("[MASK]");
  const best = parts.flatMap((part, place) =>
    place < found.guesses.length ? [part, make("mark", {}, found.guesses[place][0].piece)] : [part],
  );
  const lists = found.guesses.flatMap((guesses, place) => [
    make("h2", {}, found.guesses.length > 1 ? `Mask ${place + 1}` : "The likeliest words"),
    bars(guesses.map((guess) => [guess.piece, guess.probability])),
  ]);
  return [make("p", { class: "text" }, ...best), ...lists];
}

function showSimilarity(found, values) {
  const texts = lines(values.other);
  const ordered = found.map((cosine, place) => [texts[place], cosine]).sort((one, other) => other[1] - one[1]);
  return [make("h2", {}, "Cosine"), bars(ordered, (cosine) => cosine.toFixed(3))];
}

element("form").addEventListener("submit", submit);
element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token").value;
  start();
});
start();
