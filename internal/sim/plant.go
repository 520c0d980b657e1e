package sim

// Plant is a bug in the code around the production code. The simulation makes it to show that
// the checker finds it.
type Plant string

// The plants. For bugs in production code, planted_test.go builds the simulation with a
// changed source file.
const (
	PlantNone Plant = ""
	// PlantUnfenced claims without a compare-and-set.
	PlantUnfenced Plant = "no fencing on claim"
	// PlantEarlyAck acknowledges an add before its record is written.
	PlantEarlyAck Plant = "acknowledge before the KV write"
	// PlantEarlyMark lets the low watermark pass a publish that is not acknowledged.
	PlantEarlyMark Plant = "low watermark advanced before the publish is acknowledged"
	// PlantTailGap makes a tail that reads as from memory (params.replaced) lose one record in eight.
	PlantTailGap Plant = "tail from memory loses records"
	// PlantTailDropped makes a new owner follow the stream from its end.
	PlantTailDropped Plant = "applied offset dropped at take-over"
	// PlantBlindCancel writes a cancelled record without compare-and-set.
	PlantBlindCancel Plant = "cancel without compare-and-set"
	// PlantCachedCancel writes the cancelled form of a record that the router remembers from the
	// add, without compare-and-set.
	PlantCachedCancel Plant = "cancel from the cache without compare-and-set"
	// PlantEndless repeats a publish that JetStream refuses permanently.
	PlantEndless Plant = "repeat a publish that is refused permanently"
	// PlantUnstableLetter gives each try of a dead letter another message id.
	PlantUnstableLetter Plant = "dead letter without a stable message id"
	// PlantStaleRead takes the record of a callback from a server that led the stream before.
	PlantStaleRead Plant = "callback by a record older than the claim"
)

// Plants lists all plants.
var Plants = []Plant{PlantUnfenced, PlantEarlyAck, PlantEarlyMark, PlantTailDropped, PlantTailGap, PlantBlindCancel, PlantCachedCancel, PlantEndless, PlantUnstableLetter, PlantStaleRead}
