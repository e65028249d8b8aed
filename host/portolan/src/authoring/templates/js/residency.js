// Data stays in its own jurisdiction; sites of one further jurisdiction may compute on it without keeping it.
import { ANY_JURISDICTION, residency, settings } from "./portolan.js";

let configured = {
  // The further jurisdiction; empty: nowhere else.
  compute_also_in: "",
};
let tables;

export const { lifecycle, residencyPolicy } = residency({
  configure(config, names) {
    configured = settings(config, configured);
    tables = names;
  },

  // `subject` says what for and whose data: { purpose, dataJurisdiction, dataClass, fromSite }.
  partition(subject, request) {
    const data = subject.dataJurisdiction;
    return tables.sites.map(({ jurisdiction }) => {
      if (data === ANY_JURISDICTION || data === jurisdiction) return "resident";
      const alsoHere = configured.compute_also_in !== "" && tables.jurisdictions[jurisdiction] === configured.compute_also_in;
      return alsoHere ? "transient" : "denied";
    });
  },
});
