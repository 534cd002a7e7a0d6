// Keeps the world in step with the scheduler: one stream of events, opened again whenever it ends.

const SLOWEST_MS = 5000;

export function follow(world) {
  let delay = 500;
  let source = null;

  function lost(state) {
    source.close();
    world.state = state;
    world.changed();
    setTimeout(open, delay);
    delay = Math.min(SLOWEST_MS, delay * 1.5);
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
    source.onerror = () => lost("lost");
  }

  open();
}
