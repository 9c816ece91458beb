package seglog

// RebuildIndexes writes the index files that the plan found missing or wrong, and returns how many. It touches no record:
// an index is a function of its segment, and nobody trusts one. Where opening is refused it does nothing.
func (p *Plan) RebuildIndexes() (int, error) {
	n := 0
	for _, r := range p.Repairs {
		if r.Op != "write" {
			continue
		}
		if err := writeWhole(p.fs, r.Path, r.data); err != nil {
			return n, p.ioError(r.Op, r.Path, err)
		}
		n++
	}
	return n, nil
}
