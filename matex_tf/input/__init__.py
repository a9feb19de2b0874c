"""Batches of which each rank makes its rows only, in place of all rows. The script is unchanged.

A hook (`hooks.datasets`) asks for a source of the dataset that the script iterates:

1. `turns`, of a Keras `PyDataset`: one rank makes each *item*, a batch, in turn (`items_ahead`), if `items` finds that
   items depend on nothing else (`object_states`). `passes` is one iteration; `sent_items` sends the rows.
2. `shared_batches`, of any other dataset. `splitting` goes through the stages of the pipeline, back to its source, and
   describes the elements of each as tickets and work (`deferred`). Files for some stages: `maps` (`functions` splits
   the function of a map, `row_maps` lets a map of batches compute slices), `batching`, `records` (`record_index`,
   `record_functions`, `record_maps`), `memories` (of a `cache`). `advice` explains what is not shared, and why.

An iterator of shared batches is a `ticket_batches.TicketBatches`: it works on this rank's slices ahead of the steps.
Steps take slices from it (`steps.batches`), eager code whole batches (`whole_batches`, `whole_iterators`). `choices`
chooses between two ways to make batches. `changing_state` and `filled_caches` find pipelines for which ranks could not
compute the script's elements.

- *Ticket*: a cheap stand-in for an element, such as a file name. Every rank takes all tickets, in the script's order.
- *Work*: what a rank computes from a ticket, for its own rows only and later, such as the decoding of the file.
- *Stage*: a dataset, such as the result of `map`. *Pipeline*: a stage and all stages from which it is made.
- *Flat tensors*: the tensors of an element, without the structure that its *spec* describes.
- *Front*, *back*: the part of a map's function that runs in order, with the tickets, and the part that is work.
- *Window*: a dataset of the tickets of one batch's rows.
"""
