// Before the first paint: the theme that was chosen on this device, or none, which follows the system.
try {
  const chosen = localStorage.getItem('tickr.theme');
  if (chosen === 'dark' || chosen === 'light') document.documentElement.dataset.theme = chosen;
} catch {
  /* a browser that keeps nothing follows the system */
}
