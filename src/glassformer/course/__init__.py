"""The four labs as a course: notebooks with blanks, checks of answers, and grading."""

from glassformer.course.checking import Exercise, Judgement, Lesson, Verdict, WrongAnswer, lesson

__all__ = ["Exercise", "Judgement", "Lesson", "Verdict", "WrongAnswer", "lesson"]
