// What a browser shows while Python loads, or why it cannot: modules do not load from a file.

if (location.protocol !== "file:") {
  document.getElementById("status").textContent = "Loading …";
}
