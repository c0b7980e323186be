"""`Deployer`: the services of a run, under the names that users of RedCoast know.

Each service is a file: `_batches`, `_placement`, `_checkpoints`, `_log`, `_rounds`, `_workdir`. The class in
`_deployer` forwards its methods to them. Add a method to the service that it belongs to, and a line to the
class.
"""
