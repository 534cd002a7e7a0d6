// Keeps the world in step with the scheduler: one stream of events, opened again whenever it ends.

const SLOWEST_MS = 5000;

// Whether somebody serves there who does not take our token any more: a stream that ends does not say why.
async function isRefused() {
  try {
    return (await fetch("./", { method: "HEAD" })).status === 401;
  } catch {
    return false;
  }
}

export function follow(world) {
  let delay = 500;
  let source = null;

  function tell(state) {
    world.state = state;
    world.changed();
  }

  async function lost() {
    source.close();
    setTimeout(open, delay);
    delay = Math.min(SLOWEST_MS, delay * 1.5);
    if (world.state !== "refused") tell("lost");
    const refused = await isRefused();
    if (world.state !== "live") tell(refused ? "refused" : "lost");
  }

  function open() {
    source = new EventSource("stream");
    const on = (name, handle) => source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    on("hello", (about) => {
      delay = 500;
      world.hello(about);
    });
    on("rows", (rows) => world.rows(rows));
    on("whole", () => world.allTold());
    on("again", () => world.again());
    on("numbers", (numbers) => world.count(numbers, Date.now()));
    on("queues", (gauges) => {
      world.gauges = gauges;
      world.changed();
    });
    on("decisions", (told) => world.decided(told));
    source.onerror = lost;
  }

  open();
}
