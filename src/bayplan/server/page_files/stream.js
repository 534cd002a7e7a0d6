// Keeps the world in sync with the scheduler: one stream of events, reopened when it ends.

const SLOWEST_MS = 5000;

// Whether the server refuses the token: the end of a stream has no reason.
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
    on("decisions", (entries) => world.decided(entries));
    source.onerror = lost;
  }

  open();
}
