package mutation

// dispatchMutants are bugs in what a subscription decides, and in what its cursor keeps.
var dispatchMutants = []mutant{
	{
		name: "failed-cursor-save-forgotten", file: "internal/cursor/changes.go",
		old:      "\t\t\ts.blocks[i].dirty = true\n",
		new:      "\t\t\ts.blocks[i].dirty = false\n",
		breaks:   "acknowledgements whose save failed are in no later save",
		promises: []string{"SUB-07"},
		test:     "internal/cursor.TestSavesLoseNothing", short: true,
	},
	{
		name: "late-acks-ignored", file: "internal/dispatch/settle.go",
		old:      "\t\tif n.count > 0 {\n",
		new:      "\t\tif n.place == placeLeased {\n",
		breaks:   "an acknowledgement that comes after the timeout does not count, and the record is handed out again",
		promises: []string{"SUB-06"},
		test:     "internal/dispatch.TestModel", short: true,
	},
	{
		name: "gone-consumer-keeps-its-records", file: "internal/dispatch/members.go",
		old:      "\td.members.remove(c)\n\td.takeBack(c)\n",
		new:      "\td.members.remove(c)\n",
		breaks:   "what a consumer held when its connection broke is handed to nobody",
		promises: []string{"SUB-05", "SUB-06"},
		test:     "internal/simulation.TestDispatch", short: true,
	},
	{
		name: "key-moves-at-once", file: "internal/dispatch/keys.go",
		old:      "\tif k.owner == nil || k.inFlight > 0 && k.holder != k.owner {",
		new:      "\tif k.owner == nil {",
		breaks:   "a key goes to a consumer that joins while another one still works on its records",
		promises: []string{"SUB-05"},
		test:     "internal/simulation.TestDispatch", short: true,
	},
	{
		name: "keys-do-not-wait", file: "internal/dispatch/keys.go",
		old:      "\tif n == nil || n.place != placeReady || ",
		new:      "\tif n == nil || ",
		breaks:   "a record with a key is handed out again before its backoff is over",
		promises: []string{"SUB-06"},
		test:     "internal/simulation.TestDispatch", short: true,
	},
	{
		name: "late-read-taken", file: "internal/dispatch/read.go",
		old:      "\tif d.stale {\n\t\td.stale = false\n\t\treturn\n\t}\n",
		new:      "\td.stale = false\n",
		breaks:   "a seek back while a read is under way leaves out all before what was read",
		promises: []string{"SUB-06"},
		test:     "internal/dispatch.TestLateReadIsDropped", short: true,
	},
}
