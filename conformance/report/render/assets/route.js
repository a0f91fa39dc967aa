// The address's fragment describes the whole view, so a link survives a reload:
//   #cell=steering[llama-vllm-pp1-middle]   #model=llama   #verdict=wrong,dropped&q=llama
const encode = (text) => encodeURIComponent(text).replace(/%5B/g, '[').replace(/%5D/g, ']').replace(/%3A/g, ':').replace(/%2F/g, '/');

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function readRoute() {
  const found = {};
  for (const pair of location.hash.slice(1).split('&')) {
    const at = pair.indexOf('=');
    if (at > 0) found[pair.slice(0, at)] = decode(pair.slice(at + 1));
  }
  return found;
}

const cellLink = (cell) => `#cell=${encode(cell.id)}`;
const modelLink = (model) => `#model=${encode(model.id)}`;
