// Elements, and the few kinds of controls that plots have.

const $ = (id) => document.getElementById(id);

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const select = (label, options, chosen, onChange) => {
  const control = element("select", { onchange: () => onChange(control.value) },
    ...options.map(([value, text]) => element("option", { value, textContent: text })));
  control.value = chosen;
  return element("label", {}, `${label} `, control);
};

const toggle = (text, onChange) => {
  const button = element("button", { textContent: text, onclick: () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", pressed);
    onChange(pressed);
  } });
  button.setAttribute("aria-pressed", false);
  return button;
};

const mark = (which) => element("span", { className: `mark ${which ? "second" : "first"}`, textContent: "AB"[which] });
