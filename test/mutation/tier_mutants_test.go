package mutation

// tierMutants are bugs between a log and the copies of its segments.
var tierMutants = []mutant{
	{
		name: "retention-before-the-copy", file: "internal/seglog/retain.go",
		old:      "return v.segs[0].next <= copied && (",
		new:      "return v.segs[0].next <= max(copied, v.segs[0].next) && (",
		breaks:   "retention removes segments of which there is no copy yet",
		promises: []string{"RET-03", "RET-04"},
		test:     "internal/partition.TestRetentionWaitsForTheExport",
	},
	{
		name: "export-noted-unread", file: "internal/tier/upload.go",
		old:      "\tdamage := readBack(g, store, key, f)\n",
		new:      "\tvar damage error\n",
		breaks:   "an object counts as stored that was never read back",
		promises: []string{"RET-03", "TIER-03"},
		test:     "internal/tier.TestUploadReadsBack",
	},
	{
		name: "two-exporters", file: "internal/meta/export.go",
		old:      "\tif c.Frontier != frontier {\n",
		new:      "\tif c.Frontier > frontier {\n",
		breaks:   "who does not know where the exported segments end adds one all the same",
		promises: []string{"TIER-03"},
		test:     "internal/meta.TestScenarios",
	},
	{
		name: "stale-exporter", file: "internal/meta/export.go",
		old:      "\tt, refused := v.partition(n, id, partition, generation)\n",
		new:      "\tt, refused := v.current(n, id)\n",
		breaks:   "who lost a partition to another owner goes on exporting it",
		promises: []string{"TIER-03"},
		test:     "internal/meta.TestScenarios",
	},
	{
		name: "gap-read-over", file: "internal/partition/tiered.go",
		old:      "o.Base > r.offset {",
		new:      "o.Next <= r.offset {",
		breaks:   "a reader is not told that records between two objects are gone",
		promises: []string{"TIER-04"},
		test:     "internal/partition.TestGapsAreTold",
	},
	{
		name: "served-with-less", file: "internal/partition/open.go",
		old:      "if p.cfg.Tier == nil && p.cfg.Meta",
		new:      "if p.cfg.Tier == nil && p.cfg.Tier != nil && p.cfg.Meta",
		breaks:   "a broker without the object store serves what is left of a topic, as if that were all",
		promises: []string{"SUB-11"},
		test:     "internal/partition.TestGapsAreTold",
	},
}
