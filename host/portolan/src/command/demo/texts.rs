//! What the tour asks. Long enough that a prompt is worth computing elsewhere.

pub(in crate::command) const CAPITAL: &str = "What is the capital of France?";

pub(in crate::command) const CAPITAL_ANSWER: &str = "The capital of France is Paris.";

pub(in crate::command) const CHARTS: &str = "A portolan is a chart that pilots of the Mediterranean steered by from the thirteenth \
century on. It shows coasts, harbours and shoals with a precision that no map had before, and it is covered by a net of \
lines that run from compass roses in the thirty-two directions of the winds. A pilot who knew his port of departure and \
his port of arrival laid a ruler between the two, looked for the line that ran closest to it, and read the course from \
the rose. Distances were stepped off with dividers along a scale at the edge. The names of harbours stand at right \
angles to the coast, the important ones in red, so that the chart could be turned on the table as the ship turned. \
Charts were drawn on a single sheet of vellum, and the neck of the animal often still points to the west. \
In two sentences: what is a portolan chart, and how did a pilot find his course with it?";

pub(in crate::command) const CABLES: &str = "The first telegraph cable across the Atlantic was laid in 1858 from Ireland to \
Newfoundland. It carried a message of ninety-eight words from a queen to a president, which took sixteen hours to send, \
and it failed after three weeks because an engineer had raised the voltage to make the signals stronger. A new cable was \
laid in 1866 by the largest ship of its time, and it worked: eight words a minute, at a price that only governments and \
merchants could pay. A century later the first telephone cable carried thirty-six calls at once, with amplifiers on the \
sea bed every seventy kilometres. The cables of today are bundles of glass fibres as thin as a hair, carry hundreds of \
terabits a second, and are still laid by ships that move no faster than a cyclist. \
In two sentences: why did the first cable fail, and what changed later?";

pub(in crate::command) const STORY: &str =
    "Write a short story about a lighthouse keeper who receives a letter from the sea.";
