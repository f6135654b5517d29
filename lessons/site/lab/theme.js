// Light or dark as chosen on the site's pages (furo keeps it under "theme"), else as the system is.

try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.style.colorScheme = theme;
} catch {
  // no storage: the system decides
}
