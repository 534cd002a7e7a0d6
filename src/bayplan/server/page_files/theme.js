// Light or dark: as the system says, or as the reader has chosen.

export const THEMES = ["system", "light", "dark"];

export function keptTheme() {
  try {
    const kept = localStorage.getItem("bayplan-theme");
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

export function keepTheme(theme) {
  try {
    localStorage.setItem("bayplan-theme", theme);
  } catch {
    // it is forgotten with the page
  }
}

export function isDark(theme) {
  return theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
}

// What the canvas needs of the colours of the page.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["sea", "bay", "closed", "dim", "faint", "chosen", "text", "line", "good", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
