package snapshot

// Usage is what a tree takes of [Limits].
type Usage struct {
	Entries int   // files, directories and links
	Names   int   // bytes of paths and targets
	Parts   int   // of contents, holes excepted
	Bytes   int64 // of them
}

// Usage adds up what a tree takes.
func (t Tree) Usage() (u Usage) {
	for name, node := range t {
		u = u.Plus(usageOf(name, node.Target)).Plus(usageOfParts(node.Parts))
	}
	return u
}

// Plus returns the sum of two usages.
func (u Usage) Plus(other Usage) Usage {
	return Usage{u.Entries + other.Entries, u.Names + other.Names, u.Parts + other.Parts, u.Bytes + other.Bytes}
}

func usageOf(name, target string) Usage {
	return Usage{Entries: 1, Names: len(name) + len(target)}
}

func usageOfParts(parts []Part) (u Usage) {
	for _, p := range parts {
		if p.Sum != "" {
			u.Parts, u.Bytes = u.Parts+1, u.Bytes+p.Size
		}
	}
	return u
}

// Within returns an error that wraps [ErrLimit] when it is more than the limits allow.
func (u Usage) Within(limits Limits) error { return limits.withDefaults().check("", u) }

// check is Within of limits that are set; name is the path that was added last.
func (l Limits) check(name string, u Usage) error {
	switch {
	case u.Entries > l.MaxEntries:
		return limitf(name, "more than %d entries", l.MaxEntries)
	case u.Names > MaxNames:
		return limitf(name, "the names have more than %d bytes together", MaxNames)
	case u.Parts > partsPerEntry*l.MaxEntries:
		return limitf(name, "the files have more than %d parts together", partsPerEntry*l.MaxEntries)
	case u.Bytes > l.MaxBytes:
		return limitf(name, "the files have more than %d bytes together", l.MaxBytes)
	default:
		return nil
	}
}

// budget is what is left of the limits of one tree; nil is without limits.
type budget struct {
	limits Limits
	used   Usage
}

// entry takes an entry with its name and target from the budget.
func (b *budget) entry(name, target string) error {
	if b != nil && (len(name) > MaxPath || len(target) > MaxPath) {
		return limitf(name, "a path has more than %d bytes", MaxPath)
	}
	return b.take(name, usageOf(name, target))
}

// content takes parts of a file from the budget.
func (b *budget) content(name string, parts ...Part) error { return b.take(name, usageOfParts(parts)) }

func (b *budget) take(name string, u Usage) error {
	if b == nil {
		return nil
	}
	b.used = b.used.Plus(u)
	return b.limits.check(name, b.used)
}

// node takes a node of others from the budget, or returns what is wrong with it.
func (b *budget) node(name string, n Node) error {
	for _, err := range []error{checkName(name), b.entry(name, n.Target), n.validate(name)} {
		if err != nil {
			return err
		}
	}
	return b.content(name, n.Parts...)
}
