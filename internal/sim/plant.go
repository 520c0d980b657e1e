package sim

// Plant is a bug that a simulation makes in place of a shell that is right, to
// show that the checker finds it.
type Plant string

// The plants. Bugs inside the pure parts are planted by the test, which builds
// them with a changed source file; see planted_test.go.
const (
	PlantNone Plant = ""
	// PlantUnfenced claims without a compare-and-set.
	PlantUnfenced Plant = "no fencing on claim"
	// PlantEarlyAck acknowledges an add before its record is written.
	PlantEarlyAck Plant = "acknowledge before the KV write"
	// PlantEarlyMark lets the mark pass a publish that is not acknowledged.
	PlantEarlyMark Plant = "mark advanced before the publish is acknowledged"
	// PlantTailDropped has a new owner follow the stream from now on.
	PlantTailDropped Plant = "tail position dropped at take-over"
	// PlantBlindCancel cancels what it has read, whatever it has become since.
	PlantBlindCancel Plant = "cancel without CAS"
	// PlantEndless repeats a publish that is refused for good.
	PlantEndless Plant = "repeat what is refused for good"
	// PlantUnstableLetter gives each try of a dead letter a message id of its own.
	PlantUnstableLetter Plant = "dead letter without a stable message id"
)

// Plants are all of them.
var Plants = []Plant{PlantUnfenced, PlantEarlyAck, PlantEarlyMark, PlantTailDropped, PlantBlindCancel, PlantEndless, PlantUnstableLetter}
