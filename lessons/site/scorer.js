// What the site's search puts first: a word's own entry in the glossary, then pages, then the API.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    if (docname.endsWith("/glossary") && anchor) return score + 100;
    return docname.startsWith("reference/") ? score - 20 : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
