// The two points that are compared: A and B.

const chosen = { pair: [], listeners: [] };

const choose = (at) => {
  const rest = chosen.pair.filter((one) => one !== at);
  chosen.pair = rest.length < chosen.pair.length ? rest : [...chosen.pair.slice(-1), at];
  chosen.listeners.forEach((listener) => listener());
};

const chooseBoth = (first, second) => {
  chosen.pair = [first, second].filter((one) => one !== undefined);
  chosen.listeners.forEach((listener) => listener());
};

const onChoice = (listener) => chosen.listeners.push(listener);
