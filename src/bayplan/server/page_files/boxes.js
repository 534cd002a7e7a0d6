// Layout of pods in a bay: boxes whose area is their dominant share of the node, in strips from the bottom up.
//
// Strips keep the order of the pods, so a new or deleted pod moves few other boxes. A strip is full when one more box
// would make its boxes longer and thinner. The rest at the top of the bay is free.

const SMALLEST = 0.003; // of the bay: every pod stays visible

// Boxes as [x, y, width, height, ...] in fractions of the bay, y downwards.
export function boxesOf(shares, ratio) {
  const sizes = shares.map((share) => Math.max(SMALLEST, share));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const scale = total > 1 ? 1 / total : 1;
  const boxes = new Float32Array(4 * sizes.length);
  let first = 0;
  let floor = 1;
  while (first < sizes.length) {
    let end = first + 1;
    let sum = sizes[first];
    while (end < sizes.length && worst(sizes, first, end + 1, sum + sizes[end], scale, ratio)
        <= worst(sizes, first, end, sum, scale, ratio)) {
      sum += sizes[end];
      end += 1;
    }
    const height = sum * scale;
    let x = 0;
    floor -= height;
    for (let place = first; place < end; place += 1) {
      const width = sizes[place] / sum;
      boxes.set([x, Math.max(0, floor), width, height], 4 * place);
      x += width;
    }
    first = end;
  }
  return boxes;
}

// The average aspect ratio of the boxes of a strip. A strip that holds one pod spans the bay.
function worst(sizes, first, end, sum, scale, ratio) {
  const height = sum * scale;
  let badness = 0;
  for (let place = first; place < end; place += 1) {
    const width = (sizes[place] / sum) * ratio;
    badness += Math.max(width / height, height / width);
  }
  return badness / (end - first);
}
