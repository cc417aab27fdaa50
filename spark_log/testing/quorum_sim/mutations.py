from spark_log.testing.sim.constants import Mutation
DIRECTORY_KEPT="x"
MUTATIONS:dict[str,Mutation]={}
