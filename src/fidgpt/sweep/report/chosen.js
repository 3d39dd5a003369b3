// The two points that are compared: A and B.

const chosen = { pair: [], heard: [] };

const choose = (at) => {
  const rest = chosen.pair.filter((one) => one !== at);
  chosen.pair = rest.length < chosen.pair.length ? rest : [...chosen.pair.slice(-1), at];
  chosen.heard.forEach((hear) => hear());
};

const chooseBoth = (first, second) => {
  chosen.pair = [first, second].filter((one) => one !== undefined);
  chosen.heard.forEach((hear) => hear());
};

const onChoice = (hear) => chosen.heard.push(hear);
