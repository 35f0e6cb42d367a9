"""On-policy distillation of language models: a Python client of taopd-teacher.

    from taopd import Teacher

    with Teacher("grpc://127.0.0.1:50051") as teacher:
        scores = teacher.score([1, 403, 407, 261], start=1, top_k=2)

AsyncTeacher is the same for asyncio. The Linux wheel also has the programs taopd-teacher and taopd-trainer.
"""

from taopd.aio import AsyncTeacher
from taopd.client import Teacher
from taopd.connection import Tls
from taopd.messages import GenerateRequest, Generation, ScoreRequest, Scores, TeacherInfo
from taopd.retry import RetryOptions, TeacherError

__all__ = ["AsyncTeacher", "GenerateRequest", "Generation", "RetryOptions", "ScoreRequest", "Scores", "Teacher",
           "TeacherError", "TeacherInfo", "Tls"]
