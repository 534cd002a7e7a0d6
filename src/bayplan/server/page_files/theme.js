// Light or dark: the system's setting, or the user's choice.

export const THEMES = ["system", "light", "dark"];

export function keptTheme() {
  try {
    const kept = localStorage.getItem("bayplan-theme");
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // a browser without local storage
  }
}

export function keepTheme(theme) {
  try {
    localStorage.setItem("bayplan-theme", theme);
  } catch {
    // the choice is lost when the page is closed
  }
}

export function isDark(theme) {
  return theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
}

// The colours of the page for the canvas.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["sea", "bay", "closed", "dim", "faint", "chosen", "text", "line", "good", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
